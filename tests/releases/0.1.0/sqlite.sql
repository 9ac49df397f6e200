BEGIN TRANSACTION;
CREATE TABLE "auth_group" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "name" varchar(150) NOT NULL UNIQUE);
CREATE TABLE "auth_group_permissions" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "group_id" integer NOT NULL REFERENCES "auth_group" ("id") DEFERRABLE INITIALLY DEFERRED, "permission_id" integer NOT NULL REFERENCES "auth_permission" ("id") DEFERRABLE INITIALLY DEFERRED);
CREATE TABLE "auth_permission" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "content_type_id" integer NOT NULL REFERENCES "django_content_type" ("id") DEFERRABLE INITIALLY DEFERRED, "codename" varchar(100) NOT NULL, "name" varchar(255) NOT NULL);
INSERT INTO "auth_permission" VALUES(1,1,'add_logentry','Can add log entry');
INSERT INTO "auth_permission" VALUES(2,1,'change_logentry','Can change log entry');
INSERT INTO "auth_permission" VALUES(3,1,'delete_logentry','Can delete log entry');
INSERT INTO "auth_permission" VALUES(4,1,'view_logentry','Can view log entry');
INSERT INTO "auth_permission" VALUES(5,2,'add_permission','Can add permission');
INSERT INTO "auth_permission" VALUES(6,2,'change_permission','Can change permission');
INSERT INTO "auth_permission" VALUES(7,2,'delete_permission','Can delete permission');
INSERT INTO "auth_permission" VALUES(8,2,'view_permission','Can view permission');
INSERT INTO "auth_permission" VALUES(9,3,'add_group','Can add group');
INSERT INTO "auth_permission" VALUES(10,3,'change_group','Can change group');
INSERT INTO "auth_permission" VALUES(11,3,'delete_group','Can delete group');
INSERT INTO "auth_permission" VALUES(12,3,'view_group','Can view group');
INSERT INTO "auth_permission" VALUES(13,4,'add_user','Can add user');
INSERT INTO "auth_permission" VALUES(14,4,'change_user','Can change user');
INSERT INTO "auth_permission" VALUES(15,4,'delete_user','Can delete user');
INSERT INTO "auth_permission" VALUES(16,4,'view_user','Can view user');
INSERT INTO "auth_permission" VALUES(17,5,'add_contenttype','Can add content type');
INSERT INTO "auth_permission" VALUES(18,5,'change_contenttype','Can change content type');
INSERT INTO "auth_permission" VALUES(19,5,'delete_contenttype','Can delete content type');
INSERT INTO "auth_permission" VALUES(20,5,'view_contenttype','Can view content type');
INSERT INTO "auth_permission" VALUES(21,6,'add_session','Can add session');
INSERT INTO "auth_permission" VALUES(22,6,'change_session','Can change session');
INSERT INTO "auth_permission" VALUES(23,6,'delete_session','Can delete session');
INSERT INTO "auth_permission" VALUES(24,6,'view_session','Can view session');
INSERT INTO "auth_permission" VALUES(25,7,'add_aliasstate','Can add state of a memory');
INSERT INTO "auth_permission" VALUES(26,7,'change_aliasstate','Can change state of a memory');
INSERT INTO "auth_permission" VALUES(27,7,'delete_aliasstate','Can delete state of a memory');
INSERT INTO "auth_permission" VALUES(28,7,'view_aliasstate','Can view state of a memory');
INSERT INTO "auth_permission" VALUES(29,8,'add_session','Can add session');
INSERT INTO "auth_permission" VALUES(30,8,'change_session','Can change session');
INSERT INTO "auth_permission" VALUES(31,8,'delete_session','Can delete session');
INSERT INTO "auth_permission" VALUES(32,8,'view_session','Can view session');
INSERT INTO "auth_permission" VALUES(33,8,'write_any_role','Can write messages of any role through the API');
INSERT INTO "auth_permission" VALUES(34,9,'add_segment','Can add segment');
INSERT INTO "auth_permission" VALUES(35,9,'change_segment','Can change segment');
INSERT INTO "auth_permission" VALUES(36,9,'delete_segment','Can delete segment');
INSERT INTO "auth_permission" VALUES(37,9,'view_segment','Can view segment');
INSERT INTO "auth_permission" VALUES(38,10,'add_message','Can add message');
INSERT INTO "auth_permission" VALUES(39,10,'change_message','Can change message');
INSERT INTO "auth_permission" VALUES(40,10,'delete_message','Can delete message');
INSERT INTO "auth_permission" VALUES(41,10,'view_message','Can view message');
INSERT INTO "auth_permission" VALUES(42,11,'add_usedkey','Can add idempotency key');
INSERT INTO "auth_permission" VALUES(43,11,'change_usedkey','Can change idempotency key');
INSERT INTO "auth_permission" VALUES(44,11,'delete_usedkey','Can delete idempotency key');
INSERT INTO "auth_permission" VALUES(45,11,'view_usedkey','Can view idempotency key');
INSERT INTO "auth_permission" VALUES(46,12,'add_attempt','Can add attempt');
INSERT INTO "auth_permission" VALUES(47,12,'change_attempt','Can change attempt');
INSERT INTO "auth_permission" VALUES(48,12,'delete_attempt','Can delete attempt');
INSERT INTO "auth_permission" VALUES(49,12,'view_attempt','Can view attempt');
INSERT INTO "auth_permission" VALUES(50,13,'add_summary','Can add summary');
INSERT INTO "auth_permission" VALUES(51,13,'change_summary','Can change summary');
INSERT INTO "auth_permission" VALUES(52,13,'delete_summary','Can delete summary');
INSERT INTO "auth_permission" VALUES(53,13,'view_summary','Can view summary');
INSERT INTO "auth_permission" VALUES(54,14,'add_vector','Can add embedding');
INSERT INTO "auth_permission" VALUES(55,14,'change_vector','Can change embedding');
INSERT INTO "auth_permission" VALUES(56,14,'delete_vector','Can delete embedding');
INSERT INTO "auth_permission" VALUES(57,14,'view_vector','Can view embedding');
CREATE TABLE "auth_user" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "password" varchar(128) NOT NULL, "last_login" datetime NULL, "is_superuser" bool NOT NULL, "username" varchar(150) NOT NULL UNIQUE, "last_name" varchar(150) NOT NULL, "email" varchar(254) NOT NULL, "is_staff" bool NOT NULL, "is_active" bool NOT NULL, "date_joined" datetime NOT NULL, "first_name" varchar(150) NOT NULL);
INSERT INTO "auth_user" VALUES(1,'!BbZ0Dt9hGeeFQMpzzXTHtCEfYHhT4UrWTV2hfzLF',NULL,0,'anna','','',0,1,'2026-11-29 00:59:49.186274','');
CREATE TABLE "auth_user_groups" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "user_id" integer NOT NULL REFERENCES "auth_user" ("id") DEFERRABLE INITIALLY DEFERRED, "group_id" integer NOT NULL REFERENCES "auth_group" ("id") DEFERRABLE INITIALLY DEFERRED);
CREATE TABLE "auth_user_user_permissions" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "user_id" integer NOT NULL REFERENCES "auth_user" ("id") DEFERRABLE INITIALLY DEFERRED, "permission_id" integer NOT NULL REFERENCES "auth_permission" ("id") DEFERRABLE INITIALLY DEFERRED);
CREATE TABLE "convmemory_aliasstate" ("alias" varchar(100) NOT NULL PRIMARY KEY, "failures" integer NOT NULL, "last_session" bigint NULL, "since" datetime NULL, "paused_until" datetime NULL, "reason" varchar(16) NOT NULL, "error" text NOT NULL, "threshold" varchar(64) NOT NULL, "compared_id" bigint NULL);
CREATE TABLE "convmemory_attempt" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "alias" varchar(100) NOT NULL, "first_position" bigint unsigned NOT NULL CHECK ("first_position" >= 0), "last_position" bigint unsigned NOT NULL CHECK ("last_position" >= 0), "started_at" datetime NOT NULL, "due_seconds" real NOT NULL, "duration_seconds" real NOT NULL, "outcome" varchar(16) NOT NULL, "error" varchar(300) NOT NULL, "model" varchar(200) NOT NULL, "prompt_tokens" integer unsigned NULL CHECK ("prompt_tokens" >= 0), "completion_tokens" integer unsigned NULL CHECK ("completion_tokens" >= 0), "cached_tokens" integer unsigned NULL CHECK ("cached_tokens" >= 0), "cost" decimal NULL, "version" bigint unsigned NULL CHECK ("version" >= 0), "session_id" bigint NULL REFERENCES "convmemory_session" ("id") DEFERRABLE INITIALLY DEFERRED);
INSERT INTO "convmemory_attempt" VALUES(1,'default',1,11,'2026-11-29 00:59:49.580000',0.375,3.88598439994893851689e-02,'published','','extractive',NULL,NULL,NULL,NULL,1,1);
INSERT INTO "convmemory_attempt" VALUES(2,'default',1,13,'2026-11-29 00:59:49.742000',0.016,1.87229949997345102019e-02,'published','','extractive',NULL,NULL,NULL,NULL,2,1);
CREATE TABLE "convmemory_embeddings_vector" ("position" bigint NOT NULL, "model" integer NOT NULL, "data" BLOB NOT NULL, "session_id" bigint NOT NULL REFERENCES "convmemory_session" ("id") DEFERRABLE INITIALLY DEFERRED, PRIMARY KEY ("session_id", "position"));
INSERT INTO "convmemory_embeddings_vector" VALUES(1,1285177525,X'',1);
INSERT INTO "convmemory_embeddings_vector" VALUES(2,1285177525,X'7F000000',1);
INSERT INTO "convmemory_embeddings_vector" VALUES(3,1285177525,X'7F000000',1);
INSERT INTO "convmemory_embeddings_vector" VALUES(4,1285177525,X'',1);
INSERT INTO "convmemory_embeddings_vector" VALUES(5,1285177525,X'',1);
INSERT INTO "convmemory_embeddings_vector" VALUES(6,1285177525,X'7F000000',1);
INSERT INTO "convmemory_embeddings_vector" VALUES(7,1285177525,X'7F000000',1);
INSERT INTO "convmemory_embeddings_vector" VALUES(8,1285177525,X'7F000000',1);
INSERT INTO "convmemory_embeddings_vector" VALUES(9,1285177525,X'7F000000',1);
INSERT INTO "convmemory_embeddings_vector" VALUES(10,1285177525,X'7F000000',1);
INSERT INTO "convmemory_embeddings_vector" VALUES(11,1285177525,X'7F000000',1);
INSERT INTO "convmemory_embeddings_vector" VALUES(12,1285177525,X'7F000000',1);
INSERT INTO "convmemory_embeddings_vector" VALUES(13,1285177525,X'7F000000',1);
INSERT INTO "convmemory_embeddings_vector" VALUES(14,1285177525,X'',1);
INSERT INTO "convmemory_embeddings_vector" VALUES(15,1285177525,X'7F000000',1);
INSERT INTO "convmemory_embeddings_vector" VALUES(1,1285177525,X'',2);
INSERT INTO "convmemory_embeddings_vector" VALUES(2,1285177525,X'7F000000',2);
INSERT INTO "convmemory_embeddings_vector" VALUES(3,1285177525,X'7F000000',2);
INSERT INTO "convmemory_embeddings_vector" VALUES(4,1285177525,X'',2);
INSERT INTO "convmemory_embeddings_vector" VALUES(5,1285177525,X'',2);
INSERT INTO "convmemory_embeddings_vector" VALUES(6,1285177525,X'7F000000',2);
INSERT INTO "convmemory_embeddings_vector" VALUES(7,1285177525,X'7F000000',2);
INSERT INTO "convmemory_embeddings_vector" VALUES(8,1285177525,X'7F000000',2);
INSERT INTO "convmemory_embeddings_vector" VALUES(9,1285177525,X'7F000000',2);
INSERT INTO "convmemory_embeddings_vector" VALUES(1,1285177525,X'7F000000',3);
INSERT INTO "convmemory_embeddings_vector" VALUES(2,1285177525,X'7F000000',3);
INSERT INTO "convmemory_embeddings_vector" VALUES(1,1285177525,X'7F000000',4);
INSERT INTO "convmemory_embeddings_vector" VALUES(1,1285177525,X'7F000000',5);
INSERT INTO "convmemory_embeddings_vector" VALUES(2,1285177525,X'7F000000',5);
INSERT INTO "convmemory_embeddings_vector" VALUES(3,1285177525,X'7F000000',5);
INSERT INTO "convmemory_embeddings_vector" VALUES(4,1285177525,X'7F000000',5);
INSERT INTO "convmemory_embeddings_vector" VALUES(5,1285177525,X'7F000000',5);
INSERT INTO "convmemory_embeddings_vector" VALUES(6,1285177525,X'7F000000',5);
INSERT INTO "convmemory_embeddings_vector" VALUES(7,1285177525,X'7F000000',5);
INSERT INTO "convmemory_embeddings_vector" VALUES(8,1285177525,X'7F000000',5);
INSERT INTO "convmemory_embeddings_vector" VALUES(9,1285177525,X'7F000000',5);
INSERT INTO "convmemory_embeddings_vector" VALUES(10,1285177525,X'7F000000',5);
INSERT INTO "convmemory_embeddings_vector" VALUES(11,1285177525,X'7F000000',5);
INSERT INTO "convmemory_embeddings_vector" VALUES(12,1285177525,X'7F000000',5);
CREATE TABLE "convmemory_message" ("position" bigint NOT NULL, "public_id" char(32) NOT NULL, "role" varchar(16) NOT NULL, "kind" varchar(32) NOT NULL, "content" text NULL, "wire" text NULL, "metadata" text NULL, "format" varchar(32) NULL, "item" text NULL, "usage" text NULL, "tokens" integer NOT NULL, "tokens_through" bigint NOT NULL, "answers" bigint NULL, "reply_to" bigint NULL, "cut_off" varchar(16) NULL, "created_at" datetime NOT NULL, "redacted_at" datetime NULL, "session_id" bigint NOT NULL REFERENCES "convmemory_session" ("id") DEFERRABLE INITIALLY DEFERRED, CONSTRAINT "convmemory_message_public_id" UNIQUE ("public_id", "session_id"), PRIMARY KEY ("session_id", "position"));
INSERT INTO "convmemory_message" VALUES(1,'01a224d0bc4373f49ab1d570a023f1d3','system','chat','Answer briefly.',NULL,NULL,NULL,NULL,NULL,9,0,NULL,NULL,NULL,'2026-11-29 00:59:49.192000',NULL,1);
INSERT INTO "convmemory_message" VALUES(2,'01a224d0bc497230af6a8d66efa64cee','user','chat','My number is 48151.',NULL,NULL,NULL,NULL,NULL,12,12,NULL,NULL,NULL,'2026-11-29 00:59:49.193000',NULL,1);
INSERT INTO "convmemory_message" VALUES(3,'01a224d0bc497231b01827500f7f9650','assistant','chat','Noted.',NULL,NULL,NULL,NULL,NULL,6,18,NULL,NULL,NULL,'2026-11-29 00:59:49.193000',NULL,1);
INSERT INTO "convmemory_message" VALUES(4,'01a224d0bc497c2187b276c0186440e1','user','chat','',NULL,NULL,NULL,NULL,NULL,12,30,NULL,NULL,NULL,'2026-11-29 00:59:49.198000','2026-11-29 00:59:49.665000',1);
INSERT INTO "convmemory_message" VALUES(5,'01a224d0bc497c229f295051390797bd','assistant','chat','',NULL,NULL,NULL,NULL,NULL,14,44,NULL,NULL,NULL,'2026-11-29 00:59:49.198000','2026-11-29 00:59:49.710000',1);
INSERT INTO "convmemory_message" VALUES(6,'01a224d0bc4e75d2b30060d4de872b44','user','chat','On Monday we watch a heron at the lake. On Monday we watch a heron at the lake. On Monday we watch a heron at the lake. ',NULL,'{"day":"Monday"}',NULL,NULL,NULL,34,78,NULL,NULL,NULL,'2026-11-29 00:59:49.198000',NULL,1);
INSERT INTO "convmemory_message" VALUES(7,'01a224d0bc4e75d3aef910de85422f4e','assistant','chat','I noted the heron for Monday. I noted the heron for Monday. I noted the heron for Monday. ',NULL,NULL,NULL,NULL,'{"prompt_tokens":90,"completion_tokens":20}',22,100,NULL,NULL,NULL,'2026-11-29 00:59:49.198000',NULL,1);
INSERT INTO "convmemory_message" VALUES(8,'01a224d0bc4e7b86bf6d6c81e959a301','user','chat','On Tuesday we watch a heron at the lake. On Tuesday we watch a heron at the lake. On Tuesday we watch a heron at the lake. ',NULL,'{"day":"Tuesday"}',NULL,NULL,NULL,35,135,NULL,NULL,NULL,'2026-11-29 00:59:49.198000',NULL,1);
INSERT INTO "convmemory_message" VALUES(9,'01a224d0bc4e7b8787ad3d4280c60e37','assistant','chat','I noted the heron for Tuesday. I noted the heron for Tuesday. I noted the heron for Tuesday. ',NULL,NULL,NULL,NULL,'{"prompt_tokens":90,"completion_tokens":20}',24,159,NULL,NULL,NULL,'2026-11-29 00:59:49.198000',NULL,1);
INSERT INTO "convmemory_message" VALUES(10,'01a224d0bc4f701cb9cb7661c4f13f9d','user','chat','On Wednesday we watch a heron at the lake. On Wednesday we watch a heron at the lake. On Wednesday we watch a heron at the lake. ',NULL,'{"day":"Wednesday"}',NULL,NULL,NULL,35,194,NULL,NULL,NULL,'2026-11-29 00:59:49.199000',NULL,1);
INSERT INTO "convmemory_message" VALUES(11,'01a224d0bc4f701d887abc8d03f53dd1','assistant','chat','I noted the heron for Wednesday. I noted the heron for Wednesday. I noted the heron for Wednesday. ',NULL,NULL,NULL,NULL,'{"prompt_tokens":90,"completion_tokens":20}',24,218,NULL,NULL,NULL,'2026-11-29 00:59:49.199000',NULL,1);
INSERT INTO "convmemory_message" VALUES(12,'01a224d0bc4f762a822a8a6a7239270b','user','chat','On Thursday we watch a heron at the lake. On Thursday we watch a heron at the lake. On Thursday we watch a heron at the lake. ',NULL,'{"day":"Thursday"}',NULL,NULL,NULL,37,255,NULL,NULL,NULL,'2026-11-29 00:59:49.199000',NULL,1);
INSERT INTO "convmemory_message" VALUES(13,'01a224d0bc4f762bb9c907c20aa8ae1a','assistant','chat','I noted the heron for Thursday. I noted the heron for Thursday. I noted the heron for Thursday. ',NULL,NULL,NULL,NULL,'{"prompt_tokens":90,"completion_tokens":20}',26,281,NULL,NULL,NULL,'2026-11-29 00:59:49.199000',NULL,1);
INSERT INTO "convmemory_message" VALUES(1,'01a224d0bc4373f49ab1d570a023f1d3','system','chat','Answer briefly.',NULL,NULL,NULL,NULL,NULL,9,0,NULL,NULL,NULL,'2026-11-29 00:59:49.192000',NULL,2);
INSERT INTO "convmemory_message" VALUES(2,'01a224d0bc497230af6a8d66efa64cee','user','chat','My number is 48151.',NULL,NULL,NULL,NULL,NULL,12,12,NULL,NULL,NULL,'2026-11-29 00:59:49.193000',NULL,2);
INSERT INTO "convmemory_message" VALUES(3,'01a224d0bc497231b01827500f7f9650','assistant','chat','Noted.',NULL,NULL,NULL,NULL,NULL,6,18,NULL,NULL,NULL,'2026-11-29 00:59:49.193000',NULL,2);
INSERT INTO "convmemory_message" VALUES(4,'01a224d0bc497c2187b276c0186440e1','user','chat','',NULL,NULL,NULL,NULL,NULL,12,30,NULL,NULL,NULL,'2026-11-29 00:59:49.198000','2026-11-29 00:59:49.677000',2);
INSERT INTO "convmemory_message" VALUES(5,'01a224d0bc497c229f295051390797bd','assistant','chat','',NULL,NULL,NULL,NULL,NULL,14,44,NULL,NULL,NULL,'2026-11-29 00:59:49.198000','2026-11-29 00:59:49.723000',2);
INSERT INTO "convmemory_message" VALUES(6,'01a224d0bc4e75d2b30060d4de872b44','user','chat','On Monday we watch a heron at the lake. On Monday we watch a heron at the lake. On Monday we watch a heron at the lake. ',NULL,'{"day":"Monday"}',NULL,NULL,NULL,34,78,NULL,NULL,NULL,'2026-11-29 00:59:49.198000',NULL,2);
INSERT INTO "convmemory_message" VALUES(7,'01a224d0bc4e75d3aef910de85422f4e','assistant','chat','I noted the heron for Monday. I noted the heron for Monday. I noted the heron for Monday. ',NULL,NULL,NULL,NULL,'{"prompt_tokens":90,"completion_tokens":20}',22,100,NULL,NULL,NULL,'2026-11-29 00:59:49.198000',NULL,2);
INSERT INTO "convmemory_message" VALUES(8,'01a224d0bc4e7b86bf6d6c81e959a301','user','chat','On Tuesday we watch a heron at the lake. On Tuesday we watch a heron at the lake. On Tuesday we watch a heron at the lake. ',NULL,'{"day":"Tuesday"}',NULL,NULL,NULL,35,135,NULL,NULL,NULL,'2026-11-29 00:59:49.198000',NULL,2);
INSERT INTO "convmemory_message" VALUES(9,'01a224d0bc4e7b8787ad3d4280c60e37','assistant','chat','I noted the heron for Tuesday. I noted the heron for Tuesday. I noted the heron for Tuesday. ',NULL,NULL,NULL,NULL,'{"prompt_tokens":90,"completion_tokens":20}',24,159,NULL,NULL,NULL,'2026-11-29 00:59:49.198000',NULL,2);
INSERT INTO "convmemory_message" VALUES(14,'01a224d0be637e068da3e3c87bf1f608','assistant','chat',NULL,'{"tool_calls":[{"id":"open","type":"function","function":{"name":"look_up","arguments":"{}"}},{"id":"closed","type":"function","function":{"name":"look_up","arguments":"{}"}}]}',NULL,NULL,NULL,NULL,80,361,NULL,NULL,NULL,'2026-11-29 00:59:49.732000',NULL,1);
INSERT INTO "convmemory_message" VALUES(15,'01a224d0be637e07a3938a382a331558','tool','chat','Sunny.','{"tool_call_id":"closed"}',NULL,NULL,NULL,NULL,8,369,14,NULL,NULL,'2026-11-29 00:59:49.732000',NULL,1);
INSERT INTO "convmemory_message" VALUES(1,'01a224d0be9a7beb948edd1aaed35133','user','chat','Which birds are there?',NULL,NULL,NULL,NULL,NULL,10,10,NULL,NULL,NULL,'2026-11-29 00:59:49.787000',NULL,3);
INSERT INTO "convmemory_message" VALUES(2,'01a224d0be9b7608952d4d80af0e6024','assistant','chat','Only a stork.',NULL,NULL,NULL,NULL,NULL,9,19,NULL,1,'','2026-11-29 00:59:49.788000',NULL,3);
INSERT INTO "convmemory_message" VALUES(1,'01a224d0be9c7ba6a9b5658d6d3d3617','user','chat','A kingfisher, as an item.',NULL,NULL,'responses','{"type":"message","role":"user","content":"A kingfisher, as an item."}',NULL,14,14,NULL,NULL,NULL,'2026-11-29 00:59:49.797000',NULL,4);
INSERT INTO "convmemory_message" VALUES(1,'01a224d0bea578b8af0e659041ba99ec','user','chat','This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. ',NULL,NULL,NULL,NULL,NULL,49,49,NULL,NULL,NULL,'2026-11-29 00:59:49.809000',NULL,5);
INSERT INTO "convmemory_message" VALUES(2,'01a224d0bea578b9bd5d8e753e55f632','user','chat','This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. ',NULL,NULL,NULL,NULL,NULL,49,98,NULL,NULL,NULL,'2026-11-29 00:59:49.809000',NULL,5);
INSERT INTO "convmemory_message" VALUES(3,'01a224d0bea578baa4ac2450eca7441c','user','chat','This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. ',NULL,NULL,NULL,NULL,NULL,49,147,NULL,NULL,NULL,'2026-11-29 00:59:49.809000',NULL,5);
INSERT INTO "convmemory_message" VALUES(4,'01a224d0bea578bb9a316e335be8c30f','user','chat','This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. ',NULL,NULL,NULL,NULL,NULL,49,196,NULL,NULL,NULL,'2026-11-29 00:59:49.809000',NULL,5);
INSERT INTO "convmemory_message" VALUES(5,'01a224d0bea578bc9452e475b512f46e','user','chat','This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. ',NULL,NULL,NULL,NULL,NULL,49,245,NULL,NULL,NULL,'2026-11-29 00:59:49.809000',NULL,5);
INSERT INTO "convmemory_message" VALUES(6,'01a224d0bea578bd958aa290609cc86b','user','chat','This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. ',NULL,NULL,NULL,NULL,NULL,49,294,NULL,NULL,NULL,'2026-11-29 00:59:49.809000',NULL,5);
INSERT INTO "convmemory_message" VALUES(7,'01a224d0bea578be920f2a4398eee42c','user','chat','This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. ',NULL,NULL,NULL,NULL,NULL,49,343,NULL,NULL,NULL,'2026-11-29 00:59:49.809000',NULL,5);
INSERT INTO "convmemory_message" VALUES(8,'01a224d0bea578bfb647ad13f838fb00','user','chat','This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. ',NULL,NULL,NULL,NULL,NULL,49,392,NULL,NULL,NULL,'2026-11-29 00:59:49.809000',NULL,5);
INSERT INTO "convmemory_message" VALUES(9,'01a224d0bea578c0bb95c93bd94d50a0','user','chat','This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. ',NULL,NULL,NULL,NULL,NULL,49,441,NULL,NULL,NULL,'2026-11-29 00:59:49.809000',NULL,5);
INSERT INTO "convmemory_message" VALUES(10,'01a224d0bea578c1a7e0bf419d452c56','user','chat','This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. ',NULL,NULL,NULL,NULL,NULL,49,490,NULL,NULL,NULL,'2026-11-29 00:59:49.809000',NULL,5);
INSERT INTO "convmemory_message" VALUES(11,'01a224d0bea578c2a2c90cb3fc26b237','user','chat','This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. ',NULL,NULL,NULL,NULL,NULL,49,539,NULL,NULL,NULL,'2026-11-29 00:59:49.809000',NULL,5);
INSERT INTO "convmemory_message" VALUES(12,'01a224d0bea578c3acb01287727cdf58','user','chat','This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. ',NULL,NULL,NULL,NULL,NULL,49,588,NULL,NULL,NULL,'2026-11-29 00:59:49.809000',NULL,5);
CREATE TABLE "convmemory_segment" ("first" bigint NOT NULL, "last" bigint NOT NULL, "data" text NOT NULL, "session_id" bigint NOT NULL REFERENCES "convmemory_session" ("id") DEFERRABLE INITIALLY DEFERRED, PRIMARY KEY ("session_id", "first"));
INSERT INTO "convmemory_segment" VALUES(1,15,'v2	92	!#$!!-*-*-*-*!$	79cb0	!79cb0
==	"&(*,
¶
48151	"
de:noted	#
de:sunny	/
es:not	#
es:sunny	/
heron	&''()*+,- &&''''(())**++,,--
lake	&(*, &&((**,,
monday	&'' &&''''
note	#'')+- ''''))++--
number	"
sunni	/
thursday	,- ,,--
tuesday	() (())
watch	&(*, &&((**,,
wednesday	*+ **++
',1);
INSERT INTO "convmemory_segment" VALUES(1,9,'v2	47	!#$!!-*-*	79cb0	!79cb0
==	"&(
¶
48151	"
de:noted	#
es:not	#
heron	&''() &&''''(())
lake	&( &&((
monday	&'' &&''''
note	#'') ''''))
number	"
tuesday	() (())
watch	&( &&((
',2);
INSERT INTO "convmemory_segment" VALUES(1,2,'v2	2	""	79cb0	!79cb0
==	!
¶
bird	!
stork	"
',3);
INSERT INTO "convmemory_segment" VALUES(1,1,'v2	2	#	79cb0	!79cb0
==	!
¶
item	!
kingfish	!
',4);
INSERT INTO "convmemory_segment" VALUES(1,12,'v2	192	111111111111	79cb0	!79cb0
==	!"#$%&''()*+,
¶
fold	!"#$%&''()*+, !!!!!!!"""""""#######$$$$$$$%%%%%%%&&&&&&&''''''''''''''((((((()))))))*******+++++++,,,,,,,
wait	!"#$%&''()*+, !!!!!!!"""""""#######$$$$$$$%%%%%%%&&&&&&&''''''''''''''((((((()))))))*******+++++++,,,,,,,
',5);
CREATE TABLE "convmemory_session" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "public_id" char(32) NOT NULL UNIQUE, "alias" varchar(100) NOT NULL, "visitor" varchar(64) NOT NULL, "key" varchar(255) NOT NULL, "name_hash" varchar(64) NOT NULL, "title" varchar(255) NOT NULL, "metadata" text NOT NULL CHECK ((JSON_VALID("metadata") OR "metadata" IS NULL)), "archived_at" datetime NULL, "starred_at" datetime NULL, "creation_key" varchar(64) NULL, "creation_hash" varchar(64) NULL, "last_position" bigint NOT NULL, "unpinned_count" bigint NOT NULL, "unpinned_tokens" bigint NOT NULL, "settled_tokens" bigint NOT NULL, "newest_position" bigint NOT NULL, "pinned" text NOT NULL, "pinned_count" smallint NOT NULL, "pinned_tokens" bigint NOT NULL, "call_position" bigint NOT NULL, "answered_position" bigint NOT NULL, "exchange_calls" text NOT NULL, "open_calls" text NOT NULL, "last_version" bigint NOT NULL, "current_version" bigint NOT NULL, "covered_position" bigint NOT NULL, "covered_count" bigint NOT NULL, "covered_tokens" bigint NOT NULL, "indexed_position" bigint DEFAULT 0 NOT NULL, "due_since" datetime NULL, "due_revision" bigint NOT NULL, "queued_at" datetime NULL, "attempts" integer NOT NULL, "next_attempt_at" datetime NULL, "lease_token" varchar(32) NOT NULL, "lease_expires_at" datetime NULL, "last_error" text NOT NULL, "rebuild_after" datetime NULL, "fold_window" bigint NULL, "turn_token" varchar(32) NOT NULL, "turn_expires_at" datetime NULL, "turn_question" bigint NOT NULL, "turn_stopped" bool NOT NULL, "epoch" bigint NOT NULL, "revision" bigint NOT NULL, "details" bigint NOT NULL, "fork_position" bigint NULL, "counter" varchar(100) NOT NULL, "created_at" datetime NOT NULL, "updated_at" datetime NOT NULL, "owner_id" integer NULL REFERENCES "auth_user" ("id") DEFERRABLE INITIALLY DEFERRED, "forked_from_id" bigint NULL REFERENCES "convmemory_session" ("id") DEFERRABLE INITIALLY DEFERRED, CONSTRAINT "convmemory_session_name_hash" UNIQUE ("name_hash"), CONSTRAINT "convmemory_session_creation" UNIQUE ("creation_key"));
INSERT INTO "convmemory_session" VALUES(1,'8f7488565e0f425298baecf96bd38a1d','default','','trip','4d14bba67ef4f776537fcba37704e717c9084f0351bad2be7434d7edc273bb13','A week at the lake','{"colour": "blue"}',NULL,'2026-11-29 00:59:49.779000',NULL,NULL,15,14,369,281,14,' 1:9',1,9,14,0,'|2348f99874421257|c3eefb58d7c42440','|2348f99874421257',2,2,13,12,281,15,NULL,6,NULL,0,NULL,'',NULL,'',NULL,NULL,'',NULL,0,0,2,10,1,NULL,'utf8:2','2026-11-29 00:59:49.190000','2026-11-29 00:59:49.779000',1,NULL);
INSERT INTO "convmemory_session" VALUES(2,'d8a499c1d59347778565a3ad8078fa74','default','','copy','f3fd1e8d0b19044ce02a9b1dad4de201c50301d2512aa2a20e454253812824f7','Only Monday and Tuesday','{}',NULL,NULL,NULL,NULL,9,8,159,135,9,' 1:9',1,9,0,0,'','',1,0,0,0,0,9,NULL,0,NULL,0,NULL,'',NULL,'',NULL,NULL,'',NULL,0,0,2,2,0,9,'utf8:2','2026-11-29 00:59:49.643000','2026-11-29 00:59:49.722000',1,1);
INSERT INTO "convmemory_session" VALUES(3,'b4b5b5bfdcd0496794480a92f54ef4d6','default','v-1','visit','ae9577445da84beec497afa63330a0c7a596e5557654f4817bd483029a7ad3c2','A visitor''s','{}','2026-11-29 00:59:49.788000',NULL,'ecdb7ee1f0a0a3216375fa747b045c36452b687a18586c7fdfaae21439e7e89a','967aec6a68d6bcce612978ad236a8b10d39aa57935e6344b63c39eef5c13bcf7',2,2,19,10,2,'',0,0,0,0,'','',0,0,0,0,0,2,NULL,0,NULL,0,NULL,'',NULL,'',NULL,NULL,'',NULL,0,0,0,2,1,NULL,'utf8:2','2026-11-29 00:59:49.780000','2026-11-29 00:59:49.787000',NULL,NULL);
INSERT INTO "convmemory_session" VALUES(4,'221861596cc74feb897ea755dad94049','default','','everybody','b3bd5c68d807320b4d13d51c61580b875162ccb26cdd5137e3483b5388f6e128','','{}',NULL,NULL,NULL,NULL,1,1,14,0,1,'',0,0,0,0,'','',0,0,0,0,0,1,NULL,0,NULL,0,NULL,'',NULL,'',NULL,NULL,'',NULL,0,0,0,1,0,NULL,'utf8:2','2026-11-29 00:59:49.794000','2026-11-29 00:59:49.797000',NULL,NULL);
INSERT INTO "convmemory_session" VALUES(5,'bf155ccabf844b77916f10ecbd1c63c3','default','','due','5693a76a83ff26cd76dabe76d70100aed9255bca3b6db7d0cd6fa704cb371237','','{}',NULL,NULL,NULL,NULL,12,12,588,539,12,'',0,0,0,0,'','',0,0,0,0,0,12,'2026-11-29 00:59:49.808000',1,NULL,0,NULL,'',NULL,'',NULL,NULL,'',NULL,0,0,0,1,0,NULL,'utf8:2','2026-11-29 00:59:49.807000','2026-11-29 00:59:49.808000',NULL,NULL);
CREATE TABLE "convmemory_summary" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "version" bigint unsigned NOT NULL CHECK ("version" >= 0), "parent_version" bigint unsigned NULL CHECK ("parent_version" >= 0), "first_position" bigint unsigned NOT NULL CHECK ("first_position" >= 0), "last_position" bigint unsigned NOT NULL CHECK ("last_position" >= 0), "covered_count" bigint unsigned NOT NULL CHECK ("covered_count" >= 0), "covered_tokens" bigint unsigned NOT NULL CHECK ("covered_tokens" >= 0), "text" text NOT NULL, "tokens" integer unsigned NOT NULL CHECK ("tokens" >= 0), "model" varchar(200) NOT NULL, "shortened" bool NOT NULL, "fallback" bool NOT NULL, "stand_in" bool DEFAULT 0 NOT NULL, "carried" bool DEFAULT 0 NOT NULL, "cut" bool DEFAULT 0 NOT NULL, "building" bool NOT NULL, "part_end" bigint NULL, "prompt_hash" varchar(64) NOT NULL, "identifiers" text NULL, "model_length" integer NULL, "invalidated_at" datetime NULL, "created_at" datetime NOT NULL, "session_id" bigint NOT NULL REFERENCES "convmemory_session" ("id") DEFERRABLE INITIALLY DEFERRED, CONSTRAINT "convmemory_summary_version" UNIQUE ("session_id", "version"));
INSERT INTO "convmemory_summary" VALUES(1,1,NULL,1,11,10,218,'',67,'extractive',0,0,0,0,0,0,NULL,'d96300debc654701b8edbf5a06f30ef792f1cf5c5f84c6f8486bd4fc2622392f',NULL,NULL,'2026-11-29 00:59:49.674000','2026-11-29 00:59:49.619000',1);
INSERT INTO "convmemory_summary" VALUES(2,2,NULL,1,13,12,281,'2026-11-28
User: My number is 48151. [This message was removed.] On Monday we watch a heron at the lake.
Assistant: I noted the heron for Tuesday. I noted the heron for Wednesday. I noted the heron for Thursday.',71,'extractive',0,0,0,0,0,0,NULL,'d96300debc654701b8edbf5a06f30ef792f1cf5c5f84c6f8486bd4fc2622392f','["48151"]',NULL,NULL,'2026-11-29 00:59:49.761000',1);
CREATE TABLE "convmemory_usedkey" ("key_hash" varchar(64) NOT NULL, "first_position" bigint NOT NULL, "size" integer NOT NULL, "content" varchar(64) NOT NULL, "gone_at" datetime NULL, "session_id" bigint NOT NULL REFERENCES "convmemory_session" ("id") DEFERRABLE INITIALLY DEFERRED, PRIMARY KEY ("session_id", "key_hash"));
INSERT INTO "convmemory_usedkey" VALUES('a7937b64b8caa58f03721bb6bacf5c78cb235febe0e70b1b84cd99541461a08e',2,2,'551714f05c3768ed6d20be4b289c607b6be4956f8d3f9b51f8ec63ecc3f2cb4e',NULL,1);
INSERT INTO "convmemory_usedkey" VALUES('c66790da5943c4466dd80634deb63f4e19f07e7f81624f222b86fecf9fff6445',1,1,'011683e4607922e153890bf7fd5272db2694be4d749170260e9f9e129bebe712',NULL,3);
CREATE TABLE "django_admin_log" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "object_id" text NULL, "object_repr" varchar(200) NOT NULL, "action_flag" smallint unsigned NOT NULL CHECK ("action_flag" >= 0), "change_message" text NOT NULL, "content_type_id" integer NULL REFERENCES "django_content_type" ("id") DEFERRABLE INITIALLY DEFERRED, "user_id" integer NOT NULL REFERENCES "auth_user" ("id") DEFERRABLE INITIALLY DEFERRED, "action_time" datetime NOT NULL);
CREATE TABLE "django_content_type" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "app_label" varchar(100) NOT NULL, "model" varchar(100) NOT NULL);
INSERT INTO "django_content_type" VALUES(1,'admin','logentry');
INSERT INTO "django_content_type" VALUES(2,'auth','permission');
INSERT INTO "django_content_type" VALUES(3,'auth','group');
INSERT INTO "django_content_type" VALUES(4,'auth','user');
INSERT INTO "django_content_type" VALUES(5,'contenttypes','contenttype');
INSERT INTO "django_content_type" VALUES(6,'sessions','session');
INSERT INTO "django_content_type" VALUES(7,'convmemory','aliasstate');
INSERT INTO "django_content_type" VALUES(8,'convmemory','session');
INSERT INTO "django_content_type" VALUES(9,'convmemory','segment');
INSERT INTO "django_content_type" VALUES(10,'convmemory','message');
INSERT INTO "django_content_type" VALUES(11,'convmemory','usedkey');
INSERT INTO "django_content_type" VALUES(12,'convmemory','attempt');
INSERT INTO "django_content_type" VALUES(13,'convmemory','summary');
INSERT INTO "django_content_type" VALUES(14,'convmemory_embeddings','vector');
CREATE TABLE "django_migrations" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "app" varchar(255) NOT NULL, "name" varchar(255) NOT NULL, "applied" datetime NOT NULL);
INSERT INTO "django_migrations" VALUES(1,'contenttypes','0001_initial','2026-11-29 00:59:47.486933');
INSERT INTO "django_migrations" VALUES(2,'auth','0001_initial','2026-11-29 00:59:47.503815');
INSERT INTO "django_migrations" VALUES(3,'admin','0001_initial','2026-11-29 00:59:47.508224');
INSERT INTO "django_migrations" VALUES(4,'admin','0002_logentry_remove_auto_add','2026-11-29 00:59:47.538357');
INSERT INTO "django_migrations" VALUES(5,'admin','0003_logentry_add_action_flag_choices','2026-11-29 00:59:47.550780');
INSERT INTO "django_migrations" VALUES(6,'contenttypes','0002_remove_content_type_name','2026-11-29 00:59:47.588673');
INSERT INTO "django_migrations" VALUES(7,'auth','0002_alter_permission_name_max_length','2026-11-29 00:59:47.611527');
INSERT INTO "django_migrations" VALUES(8,'auth','0003_alter_user_email_max_length','2026-11-29 00:59:47.626600');
INSERT INTO "django_migrations" VALUES(9,'auth','0004_alter_user_username_opts','2026-11-29 00:59:47.635034');
INSERT INTO "django_migrations" VALUES(10,'auth','0005_alter_user_last_login_null','2026-11-29 00:59:47.644346');
INSERT INTO "django_migrations" VALUES(11,'auth','0006_require_contenttypes_0002','2026-11-29 00:59:47.644920');
INSERT INTO "django_migrations" VALUES(12,'auth','0007_alter_validators_add_error_messages','2026-11-29 00:59:47.652702');
INSERT INTO "django_migrations" VALUES(13,'auth','0008_alter_user_username_max_length','2026-11-29 00:59:47.666576');
INSERT INTO "django_migrations" VALUES(14,'auth','0009_alter_user_last_name_max_length','2026-11-29 00:59:47.683185');
INSERT INTO "django_migrations" VALUES(15,'auth','0010_alter_group_name_max_length','2026-11-29 00:59:47.696617');
INSERT INTO "django_migrations" VALUES(16,'auth','0011_update_proxy_permissions','2026-11-29 00:59:47.708616');
INSERT INTO "django_migrations" VALUES(17,'auth','0012_alter_user_first_name_max_length','2026-11-29 00:59:47.723667');
INSERT INTO "django_migrations" VALUES(18,'convmemory','0001_tables','2026-11-29 00:59:48.229048');
INSERT INTO "django_migrations" VALUES(19,'convmemory_embeddings','0001_vectors','2026-11-29 00:59:48.260109');
INSERT INTO "django_migrations" VALUES(20,'sessions','0001_initial','2026-11-29 00:59:48.264426');
CREATE TABLE "django_session" ("session_key" varchar(40) NOT NULL PRIMARY KEY, "session_data" text NOT NULL, "expire_date" datetime NOT NULL);
CREATE UNIQUE INDEX "auth_group_permissions_group_id_permission_id_0cd325b0_uniq" ON "auth_group_permissions" ("group_id", "permission_id");
CREATE INDEX "auth_group_permissions_group_id_b120cbf9" ON "auth_group_permissions" ("group_id");
CREATE INDEX "auth_group_permissions_permission_id_84c5c92e" ON "auth_group_permissions" ("permission_id");
CREATE UNIQUE INDEX "auth_user_groups_user_id_group_id_94350c0c_uniq" ON "auth_user_groups" ("user_id", "group_id");
CREATE INDEX "auth_user_groups_user_id_6a12ed8b" ON "auth_user_groups" ("user_id");
CREATE INDEX "auth_user_groups_group_id_97559544" ON "auth_user_groups" ("group_id");
CREATE UNIQUE INDEX "auth_user_user_permissions_user_id_permission_id_14a6b632_uniq" ON "auth_user_user_permissions" ("user_id", "permission_id");
CREATE INDEX "auth_user_user_permissions_user_id_a95ead1b" ON "auth_user_user_permissions" ("user_id");
CREATE INDEX "auth_user_user_permissions_permission_id_1fbb5f2c" ON "auth_user_user_permissions" ("permission_id");
CREATE INDEX "django_admin_log_content_type_id_c4bce8eb" ON "django_admin_log" ("content_type_id");
CREATE INDEX "django_admin_log_user_id_c564eba6" ON "django_admin_log" ("user_id");
CREATE UNIQUE INDEX "django_content_type_app_label_model_76bd3d3b_uniq" ON "django_content_type" ("app_label", "model");
CREATE UNIQUE INDEX "auth_permission_content_type_id_codename_01ab375a_uniq" ON "auth_permission" ("content_type_id", "codename");
CREATE INDEX "auth_permission_content_type_id_2f476e4b" ON "auth_permission" ("content_type_id");
CREATE INDEX "convmemory_session_forked_from_id_3e731775" ON "convmemory_session" ("forked_from_id");
CREATE INDEX "convmemory_session_due" ON "convmemory_session" ("alias", "due_since");
CREATE INDEX "convmemory_session_rebuild" ON "convmemory_session" ("alias", "rebuild_after");
CREATE INDEX "convmemory_session_leased" ON "convmemory_session" ("lease_expires_at");
CREATE INDEX "convmemory_session_alias" ON "convmemory_session" ("alias", "id");
CREATE INDEX "convmemory_session_owner" ON "convmemory_session" ("owner_id", "id");
CREATE INDEX "convmemory_session_visitor" ON "convmemory_session" ("visitor", "id");
CREATE INDEX "convmemory_message_through" ON "convmemory_message" ("session_id", "tokens_through");
CREATE INDEX "convmemory_attempt_alias" ON "convmemory_attempt" ("alias", "started_at");
CREATE INDEX "convmemory_attempt_session" ON "convmemory_attempt" ("session_id", "id");
CREATE INDEX "convmemory_summary_time" ON "convmemory_summary" ("session_id", "created_at");
CREATE INDEX "django_session_expire_date_a5c62663" ON "django_session" ("expire_date");
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('django_migrations',20);
INSERT INTO "sqlite_sequence" VALUES('django_admin_log',0);
INSERT INTO "sqlite_sequence" VALUES('django_content_type',14);
INSERT INTO "sqlite_sequence" VALUES('auth_permission',57);
INSERT INTO "sqlite_sequence" VALUES('auth_group',0);
INSERT INTO "sqlite_sequence" VALUES('auth_user',1);
INSERT INTO "sqlite_sequence" VALUES('convmemory_session',5);
INSERT INTO "sqlite_sequence" VALUES('convmemory_summary',2);
INSERT INTO "sqlite_sequence" VALUES('convmemory_attempt',2);
COMMIT;

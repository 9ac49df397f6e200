CREATE TABLE `auth_group` (
  `id` int(11) NOT NULL AUTO_INCREMENT,
  `name` varchar(150) NOT NULL,
  PRIMARY KEY (`id`),
  UNIQUE KEY `name` (`name`)
) ENGINE=InnoDB;
CREATE TABLE `auth_group_permissions` (
  `id` bigint(20) NOT NULL AUTO_INCREMENT,
  `group_id` int(11) NOT NULL,
  `permission_id` int(11) NOT NULL,
  PRIMARY KEY (`id`),
  UNIQUE KEY `auth_group_permissions_group_id_permission_id_0cd325b0_uniq` (`group_id`,`permission_id`),
  KEY `auth_group_permissio_permission_id_84c5c92e_fk_auth_perm` (`permission_id`),
  CONSTRAINT `auth_group_permissio_permission_id_84c5c92e_fk_auth_perm` FOREIGN KEY (`permission_id`) REFERENCES `auth_permission` (`id`),
  CONSTRAINT `auth_group_permissions_group_id_b120cbf9_fk_auth_group_id` FOREIGN KEY (`group_id`) REFERENCES `auth_group` (`id`)
) ENGINE=InnoDB;
CREATE TABLE `auth_permission` (
  `id` int(11) NOT NULL AUTO_INCREMENT,
  `name` varchar(255) NOT NULL,
  `content_type_id` int(11) NOT NULL,
  `codename` varchar(100) NOT NULL,
  PRIMARY KEY (`id`),
  UNIQUE KEY `auth_permission_content_type_id_codename_01ab375a_uniq` (`content_type_id`,`codename`),
  CONSTRAINT `auth_permission_content_type_id_2f476e4b_fk_django_co` FOREIGN KEY (`content_type_id`) REFERENCES `django_content_type` (`id`)
) ENGINE=InnoDB AUTO_INCREMENT=58;
INSERT INTO `auth_permission` VALUES (1,'Can add log entry',1,'add_logentry');
INSERT INTO `auth_permission` VALUES (2,'Can change log entry',1,'change_logentry');
INSERT INTO `auth_permission` VALUES (3,'Can delete log entry',1,'delete_logentry');
INSERT INTO `auth_permission` VALUES (4,'Can view log entry',1,'view_logentry');
INSERT INTO `auth_permission` VALUES (5,'Can add permission',2,'add_permission');
INSERT INTO `auth_permission` VALUES (6,'Can change permission',2,'change_permission');
INSERT INTO `auth_permission` VALUES (7,'Can delete permission',2,'delete_permission');
INSERT INTO `auth_permission` VALUES (8,'Can view permission',2,'view_permission');
INSERT INTO `auth_permission` VALUES (9,'Can add group',3,'add_group');
INSERT INTO `auth_permission` VALUES (10,'Can change group',3,'change_group');
INSERT INTO `auth_permission` VALUES (11,'Can delete group',3,'delete_group');
INSERT INTO `auth_permission` VALUES (12,'Can view group',3,'view_group');
INSERT INTO `auth_permission` VALUES (13,'Can add user',4,'add_user');
INSERT INTO `auth_permission` VALUES (14,'Can change user',4,'change_user');
INSERT INTO `auth_permission` VALUES (15,'Can delete user',4,'delete_user');
INSERT INTO `auth_permission` VALUES (16,'Can view user',4,'view_user');
INSERT INTO `auth_permission` VALUES (17,'Can add content type',5,'add_contenttype');
INSERT INTO `auth_permission` VALUES (18,'Can change content type',5,'change_contenttype');
INSERT INTO `auth_permission` VALUES (19,'Can delete content type',5,'delete_contenttype');
INSERT INTO `auth_permission` VALUES (20,'Can view content type',5,'view_contenttype');
INSERT INTO `auth_permission` VALUES (21,'Can add session',6,'add_session');
INSERT INTO `auth_permission` VALUES (22,'Can change session',6,'change_session');
INSERT INTO `auth_permission` VALUES (23,'Can delete session',6,'delete_session');
INSERT INTO `auth_permission` VALUES (24,'Can view session',6,'view_session');
INSERT INTO `auth_permission` VALUES (25,'Can add state of a memory',7,'add_aliasstate');
INSERT INTO `auth_permission` VALUES (26,'Can change state of a memory',7,'change_aliasstate');
INSERT INTO `auth_permission` VALUES (27,'Can delete state of a memory',7,'delete_aliasstate');
INSERT INTO `auth_permission` VALUES (28,'Can view state of a memory',7,'view_aliasstate');
INSERT INTO `auth_permission` VALUES (29,'Can add session',8,'add_session');
INSERT INTO `auth_permission` VALUES (30,'Can change session',8,'change_session');
INSERT INTO `auth_permission` VALUES (31,'Can delete session',8,'delete_session');
INSERT INTO `auth_permission` VALUES (32,'Can view session',8,'view_session');
INSERT INTO `auth_permission` VALUES (33,'Can write messages of any role through the API',8,'write_any_role');
INSERT INTO `auth_permission` VALUES (34,'Can add segment',9,'add_segment');
INSERT INTO `auth_permission` VALUES (35,'Can change segment',9,'change_segment');
INSERT INTO `auth_permission` VALUES (36,'Can delete segment',9,'delete_segment');
INSERT INTO `auth_permission` VALUES (37,'Can view segment',9,'view_segment');
INSERT INTO `auth_permission` VALUES (38,'Can add message',10,'add_message');
INSERT INTO `auth_permission` VALUES (39,'Can change message',10,'change_message');
INSERT INTO `auth_permission` VALUES (40,'Can delete message',10,'delete_message');
INSERT INTO `auth_permission` VALUES (41,'Can view message',10,'view_message');
INSERT INTO `auth_permission` VALUES (42,'Can add idempotency key',11,'add_usedkey');
INSERT INTO `auth_permission` VALUES (43,'Can change idempotency key',11,'change_usedkey');
INSERT INTO `auth_permission` VALUES (44,'Can delete idempotency key',11,'delete_usedkey');
INSERT INTO `auth_permission` VALUES (45,'Can view idempotency key',11,'view_usedkey');
INSERT INTO `auth_permission` VALUES (46,'Can add attempt',12,'add_attempt');
INSERT INTO `auth_permission` VALUES (47,'Can change attempt',12,'change_attempt');
INSERT INTO `auth_permission` VALUES (48,'Can delete attempt',12,'delete_attempt');
INSERT INTO `auth_permission` VALUES (49,'Can view attempt',12,'view_attempt');
INSERT INTO `auth_permission` VALUES (50,'Can add summary',13,'add_summary');
INSERT INTO `auth_permission` VALUES (51,'Can change summary',13,'change_summary');
INSERT INTO `auth_permission` VALUES (52,'Can delete summary',13,'delete_summary');
INSERT INTO `auth_permission` VALUES (53,'Can view summary',13,'view_summary');
INSERT INTO `auth_permission` VALUES (54,'Can add embedding',14,'add_vector');
INSERT INTO `auth_permission` VALUES (55,'Can change embedding',14,'change_vector');
INSERT INTO `auth_permission` VALUES (56,'Can delete embedding',14,'delete_vector');
INSERT INTO `auth_permission` VALUES (57,'Can view embedding',14,'view_vector');
CREATE TABLE `auth_user` (
  `id` int(11) NOT NULL AUTO_INCREMENT,
  `password` varchar(128) NOT NULL,
  `last_login` datetime(6) DEFAULT NULL,
  `is_superuser` tinyint(1) NOT NULL,
  `username` varchar(150) NOT NULL,
  `first_name` varchar(150) NOT NULL,
  `last_name` varchar(150) NOT NULL,
  `email` varchar(254) NOT NULL,
  `is_staff` tinyint(1) NOT NULL,
  `is_active` tinyint(1) NOT NULL,
  `date_joined` datetime(6) NOT NULL,
  PRIMARY KEY (`id`),
  UNIQUE KEY `username` (`username`)
) ENGINE=InnoDB AUTO_INCREMENT=2;
INSERT INTO `auth_user` VALUES (1,'!8Wm8AFc1a0ldvuUkv9Vaf3ZQaAny0bTq8fSA3HgE',NULL,0,'anna','','','',0,1,'2026-11-29 01:00:16.383635');
CREATE TABLE `auth_user_groups` (
  `id` bigint(20) NOT NULL AUTO_INCREMENT,
  `user_id` int(11) NOT NULL,
  `group_id` int(11) NOT NULL,
  PRIMARY KEY (`id`),
  UNIQUE KEY `auth_user_groups_user_id_group_id_94350c0c_uniq` (`user_id`,`group_id`),
  KEY `auth_user_groups_group_id_97559544_fk_auth_group_id` (`group_id`),
  CONSTRAINT `auth_user_groups_group_id_97559544_fk_auth_group_id` FOREIGN KEY (`group_id`) REFERENCES `auth_group` (`id`),
  CONSTRAINT `auth_user_groups_user_id_6a12ed8b_fk_auth_user_id` FOREIGN KEY (`user_id`) REFERENCES `auth_user` (`id`)
) ENGINE=InnoDB;
CREATE TABLE `auth_user_user_permissions` (
  `id` bigint(20) NOT NULL AUTO_INCREMENT,
  `user_id` int(11) NOT NULL,
  `permission_id` int(11) NOT NULL,
  PRIMARY KEY (`id`),
  UNIQUE KEY `auth_user_user_permissions_user_id_permission_id_14a6b632_uniq` (`user_id`,`permission_id`),
  KEY `auth_user_user_permi_permission_id_1fbb5f2c_fk_auth_perm` (`permission_id`),
  CONSTRAINT `auth_user_user_permi_permission_id_1fbb5f2c_fk_auth_perm` FOREIGN KEY (`permission_id`) REFERENCES `auth_permission` (`id`),
  CONSTRAINT `auth_user_user_permissions_user_id_a95ead1b_fk_auth_user_id` FOREIGN KEY (`user_id`) REFERENCES `auth_user` (`id`)
) ENGINE=InnoDB;
CREATE TABLE `convmemory_aliasstate` (
  `alias` varchar(100) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `failures` int(11) NOT NULL,
  `last_session` bigint(20) DEFAULT NULL,
  `since` datetime(6) DEFAULT NULL,
  `paused_until` datetime(6) DEFAULT NULL,
  `reason` varchar(16) NOT NULL,
  `error` longtext NOT NULL,
  `threshold` varchar(64) NOT NULL,
  `compared_id` bigint(20) DEFAULT NULL,
  PRIMARY KEY (`alias`)
) ENGINE=InnoDB;
CREATE TABLE `convmemory_attempt` (
  `id` bigint(20) NOT NULL AUTO_INCREMENT,
  `alias` varchar(100) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `first_position` bigint(20) unsigned NOT NULL CHECK (`first_position` >= 0),
  `last_position` bigint(20) unsigned NOT NULL CHECK (`last_position` >= 0),
  `started_at` datetime(6) NOT NULL,
  `due_seconds` double NOT NULL,
  `duration_seconds` double NOT NULL,
  `outcome` varchar(16) NOT NULL,
  `error` varchar(300) NOT NULL,
  `model` varchar(200) NOT NULL,
  `prompt_tokens` int(10) unsigned DEFAULT NULL CHECK (`prompt_tokens` >= 0),
  `completion_tokens` int(10) unsigned DEFAULT NULL CHECK (`completion_tokens` >= 0),
  `cached_tokens` int(10) unsigned DEFAULT NULL CHECK (`cached_tokens` >= 0),
  `cost` decimal(14,8) DEFAULT NULL,
  `version` bigint(20) unsigned DEFAULT NULL CHECK (`version` >= 0),
  `session_id` bigint(20) DEFAULT NULL,
  PRIMARY KEY (`id`),
  KEY `convmemory_attempt_alias` (`alias`,`started_at`),
  KEY `convmemory_attempt_session` (`session_id`,`id`),
  CONSTRAINT `convmemory_attempt_session_id_158f146c_fk_convmemory_session_id` FOREIGN KEY (`session_id`) REFERENCES `convmemory_session` (`id`)
) ENGINE=InnoDB AUTO_INCREMENT=3;
INSERT INTO `convmemory_attempt` VALUES (1,'default',1,11,'2026-11-29 01:00:17.017580',0.455742,0.0017393990001437487,'published','','extractive',NULL,NULL,NULL,NULL,1,1);
INSERT INTO `convmemory_attempt` VALUES (2,'default',1,13,'2026-11-29 01:00:17.639695',0.140475,0.009812540999519115,'published','','extractive',NULL,NULL,NULL,NULL,2,1);
CREATE TABLE `convmemory_embeddings_vector` (
  `position` bigint(20) NOT NULL,
  `model` int(11) NOT NULL,
  `data` longblob NOT NULL,
  `session_id` bigint(20) NOT NULL,
  PRIMARY KEY (`session_id`,`position`),
  CONSTRAINT `convmemory_embedding_session_id_9fdb75e7_fk_convmemor` FOREIGN KEY (`session_id`) REFERENCES `convmemory_session` (`id`)
) ENGINE=InnoDB;
INSERT INTO `convmemory_embeddings_vector` VALUES (1,1285177525,'',1);
INSERT INTO `convmemory_embeddings_vector` VALUES (2,1285177525,0x7F000000,1);
INSERT INTO `convmemory_embeddings_vector` VALUES (3,1285177525,0x7F000000,1);
INSERT INTO `convmemory_embeddings_vector` VALUES (4,1285177525,'',1);
INSERT INTO `convmemory_embeddings_vector` VALUES (5,1285177525,'',1);
INSERT INTO `convmemory_embeddings_vector` VALUES (6,1285177525,0x7F000000,1);
INSERT INTO `convmemory_embeddings_vector` VALUES (7,1285177525,0x7F000000,1);
INSERT INTO `convmemory_embeddings_vector` VALUES (8,1285177525,0x7F000000,1);
INSERT INTO `convmemory_embeddings_vector` VALUES (9,1285177525,0x7F000000,1);
INSERT INTO `convmemory_embeddings_vector` VALUES (10,1285177525,0x7F000000,1);
INSERT INTO `convmemory_embeddings_vector` VALUES (11,1285177525,0x7F000000,1);
INSERT INTO `convmemory_embeddings_vector` VALUES (12,1285177525,0x7F000000,1);
INSERT INTO `convmemory_embeddings_vector` VALUES (13,1285177525,0x7F000000,1);
INSERT INTO `convmemory_embeddings_vector` VALUES (14,1285177525,'',1);
INSERT INTO `convmemory_embeddings_vector` VALUES (15,1285177525,0x7F000000,1);
INSERT INTO `convmemory_embeddings_vector` VALUES (1,1285177525,'',2);
INSERT INTO `convmemory_embeddings_vector` VALUES (2,1285177525,0x7F000000,2);
INSERT INTO `convmemory_embeddings_vector` VALUES (3,1285177525,0x7F000000,2);
INSERT INTO `convmemory_embeddings_vector` VALUES (4,1285177525,'',2);
INSERT INTO `convmemory_embeddings_vector` VALUES (5,1285177525,'',2);
INSERT INTO `convmemory_embeddings_vector` VALUES (6,1285177525,0x7F000000,2);
INSERT INTO `convmemory_embeddings_vector` VALUES (7,1285177525,0x7F000000,2);
INSERT INTO `convmemory_embeddings_vector` VALUES (8,1285177525,0x7F000000,2);
INSERT INTO `convmemory_embeddings_vector` VALUES (9,1285177525,0x7F000000,2);
INSERT INTO `convmemory_embeddings_vector` VALUES (1,1285177525,0x7F000000,3);
INSERT INTO `convmemory_embeddings_vector` VALUES (2,1285177525,0x7F000000,3);
INSERT INTO `convmemory_embeddings_vector` VALUES (1,1285177525,0x7F000000,4);
INSERT INTO `convmemory_embeddings_vector` VALUES (1,1285177525,0x7F000000,5);
INSERT INTO `convmemory_embeddings_vector` VALUES (2,1285177525,0x7F000000,5);
INSERT INTO `convmemory_embeddings_vector` VALUES (3,1285177525,0x7F000000,5);
INSERT INTO `convmemory_embeddings_vector` VALUES (4,1285177525,0x7F000000,5);
INSERT INTO `convmemory_embeddings_vector` VALUES (5,1285177525,0x7F000000,5);
INSERT INTO `convmemory_embeddings_vector` VALUES (6,1285177525,0x7F000000,5);
INSERT INTO `convmemory_embeddings_vector` VALUES (7,1285177525,0x7F000000,5);
INSERT INTO `convmemory_embeddings_vector` VALUES (8,1285177525,0x7F000000,5);
INSERT INTO `convmemory_embeddings_vector` VALUES (9,1285177525,0x7F000000,5);
INSERT INTO `convmemory_embeddings_vector` VALUES (10,1285177525,0x7F000000,5);
INSERT INTO `convmemory_embeddings_vector` VALUES (11,1285177525,0x7F000000,5);
INSERT INTO `convmemory_embeddings_vector` VALUES (12,1285177525,0x7F000000,5);
CREATE TABLE `convmemory_message` (
  `position` bigint(20) NOT NULL,
  `public_id` uuid NOT NULL,
  `role` varchar(16) NOT NULL,
  `kind` varchar(32) NOT NULL,
  `content` longtext DEFAULT NULL,
  `wire` longtext DEFAULT NULL,
  `metadata` longtext DEFAULT NULL,
  `format` varchar(32) DEFAULT NULL,
  `item` longtext DEFAULT NULL,
  `usage` longtext DEFAULT NULL,
  `tokens` int(11) NOT NULL,
  `tokens_through` bigint(20) NOT NULL,
  `answers` bigint(20) DEFAULT NULL,
  `reply_to` bigint(20) DEFAULT NULL,
  `cut_off` varchar(16) DEFAULT NULL,
  `created_at` datetime(6) NOT NULL,
  `redacted_at` datetime(6) DEFAULT NULL,
  `session_id` bigint(20) NOT NULL,
  PRIMARY KEY (`session_id`,`position`),
  UNIQUE KEY `convmemory_message_public_id` (`public_id`,`session_id`),
  KEY `convmemory_message_through` (`session_id`,`tokens_through`),
  CONSTRAINT `convmemory_message_session_id_261f2d37_fk_convmemory_session_id` FOREIGN KEY (`session_id`) REFERENCES `convmemory_session` (`id`)
) ENGINE=InnoDB;
INSERT INTO `convmemory_message` VALUES (1,'01a224d1-268a-7376-885e-4dbab9e30161','system','chat','Answer briefly.',NULL,NULL,NULL,NULL,NULL,9,0,NULL,NULL,NULL,'2026-11-29 01:00:16.453132',NULL,1);
INSERT INTO `convmemory_message` VALUES (2,'01a224d1-26c7-70ff-8346-18327a5b6e2c','user','chat','My number is 48151.',NULL,NULL,NULL,NULL,NULL,12,12,NULL,NULL,NULL,'2026-11-29 01:00:16.468677',NULL,1);
INSERT INTO `convmemory_message` VALUES (3,'01a224d1-26c7-7100-a413-124f453de5e7','assistant','chat','Noted.',NULL,NULL,NULL,NULL,NULL,6,18,NULL,NULL,NULL,'2026-11-29 01:00:16.468677',NULL,1);
INSERT INTO `convmemory_message` VALUES (4,'01a224d1-26de-783c-b48d-0152f2ad13ac','user','chat','',NULL,NULL,NULL,NULL,NULL,12,30,NULL,NULL,NULL,'2026-11-29 01:00:16.484413','2026-11-29 01:00:17.173357',1);
INSERT INTO `convmemory_message` VALUES (5,'01a224d1-26de-783d-96eb-63f9407769ca','assistant','chat','',NULL,NULL,NULL,NULL,NULL,14,44,NULL,NULL,NULL,'2026-11-29 01:00:16.484413','2026-11-29 01:00:17.319512',1);
INSERT INTO `convmemory_message` VALUES (6,'01a224d1-26f6-72e3-b13f-3758ca9eacec','user','chat','On Monday we watch a heron at the lake. On Monday we watch a heron at the lake. On Monday we watch a heron at the lake. ',NULL,'{\"day\":\"Monday\"}',NULL,NULL,NULL,34,78,NULL,NULL,NULL,'2026-11-29 01:00:16.504871',NULL,1);
INSERT INTO `convmemory_message` VALUES (7,'01a224d1-26f6-72e4-80a0-dbaefe9ce4ed','assistant','chat','I noted the heron for Monday. I noted the heron for Monday. I noted the heron for Monday. ',NULL,NULL,NULL,NULL,'{\"prompt_tokens\":90,\"completion_tokens\":20}',22,100,NULL,NULL,NULL,'2026-11-29 01:00:16.504871',NULL,1);
INSERT INTO `convmemory_message` VALUES (8,'01a224d1-26fa-76fc-9c83-7a3909ccdad1','user','chat','On Tuesday we watch a heron at the lake. On Tuesday we watch a heron at the lake. On Tuesday we watch a heron at the lake. ',NULL,'{\"day\":\"Tuesday\"}',NULL,NULL,NULL,35,135,NULL,NULL,NULL,'2026-11-29 01:00:16.508540',NULL,1);
INSERT INTO `convmemory_message` VALUES (9,'01a224d1-26fa-76fd-958a-777474b3c521','assistant','chat','I noted the heron for Tuesday. I noted the heron for Tuesday. I noted the heron for Tuesday. ',NULL,NULL,NULL,NULL,'{\"prompt_tokens\":90,\"completion_tokens\":20}',24,159,NULL,NULL,NULL,'2026-11-29 01:00:16.508540',NULL,1);
INSERT INTO `convmemory_message` VALUES (10,'01a224d1-2707-767b-9fca-567d328e5aed','user','chat','On Wednesday we watch a heron at the lake. On Wednesday we watch a heron at the lake. On Wednesday we watch a heron at the lake. ',NULL,'{\"day\":\"Wednesday\"}',NULL,NULL,NULL,35,194,NULL,NULL,NULL,'2026-11-29 01:00:16.528427',NULL,1);
INSERT INTO `convmemory_message` VALUES (11,'01a224d1-2707-767c-86ca-81fae992577d','assistant','chat','I noted the heron for Wednesday. I noted the heron for Wednesday. I noted the heron for Wednesday. ',NULL,NULL,NULL,NULL,'{\"prompt_tokens\":90,\"completion_tokens\":20}',24,218,NULL,NULL,NULL,'2026-11-29 01:00:16.528427',NULL,1);
INSERT INTO `convmemory_message` VALUES (12,'01a224d1-2722-77dc-9133-c49f38487b8e','user','chat','On Thursday we watch a heron at the lake. On Thursday we watch a heron at the lake. On Thursday we watch a heron at the lake. ',NULL,'{\"day\":\"Thursday\"}',NULL,NULL,NULL,37,255,NULL,NULL,NULL,'2026-11-29 01:00:16.549368',NULL,1);
INSERT INTO `convmemory_message` VALUES (13,'01a224d1-2722-77dd-bc76-e14ee6b407a0','assistant','chat','I noted the heron for Thursday. I noted the heron for Thursday. I noted the heron for Thursday. ',NULL,NULL,NULL,NULL,'{\"prompt_tokens\":90,\"completion_tokens\":20}',26,281,NULL,NULL,NULL,'2026-11-29 01:00:16.549368',NULL,1);
INSERT INTO `convmemory_message` VALUES (14,'01a224d1-2aba-74c9-bfa7-6e732983667e','assistant','chat',NULL,'{\"tool_calls\":[{\"id\":\"open\",\"type\":\"function\",\"function\":{\"name\":\"look_up\",\"arguments\":\"{}\"}},{\"id\":\"closed\",\"type\":\"function\",\"function\":{\"name\":\"look_up\",\"arguments\":\"{}\"}}]}',NULL,NULL,NULL,NULL,80,361,NULL,NULL,NULL,'2026-11-29 01:00:17.469751',NULL,1);
INSERT INTO `convmemory_message` VALUES (15,'01a224d1-2aba-74ca-a21e-3347218cd3c7','tool','chat','Sunny.','{\"tool_call_id\":\"closed\"}',NULL,NULL,NULL,NULL,8,369,14,NULL,NULL,'2026-11-29 01:00:17.469751',NULL,1);
INSERT INTO `convmemory_message` VALUES (1,'01a224d1-268a-7376-885e-4dbab9e30161','system','chat','Answer briefly.',NULL,NULL,NULL,NULL,NULL,9,0,NULL,NULL,NULL,'2026-11-29 01:00:16.453132',NULL,2);
INSERT INTO `convmemory_message` VALUES (2,'01a224d1-26c7-70ff-8346-18327a5b6e2c','user','chat','My number is 48151.',NULL,NULL,NULL,NULL,NULL,12,12,NULL,NULL,NULL,'2026-11-29 01:00:16.468677',NULL,2);
INSERT INTO `convmemory_message` VALUES (3,'01a224d1-26c7-7100-a413-124f453de5e7','assistant','chat','Noted.',NULL,NULL,NULL,NULL,NULL,6,18,NULL,NULL,NULL,'2026-11-29 01:00:16.468677',NULL,2);
INSERT INTO `convmemory_message` VALUES (4,'01a224d1-26de-783c-b48d-0152f2ad13ac','user','chat','',NULL,NULL,NULL,NULL,NULL,12,30,NULL,NULL,NULL,'2026-11-29 01:00:16.484413','2026-11-29 01:00:17.219361',2);
INSERT INTO `convmemory_message` VALUES (5,'01a224d1-26de-783d-96eb-63f9407769ca','assistant','chat','',NULL,NULL,NULL,NULL,NULL,14,44,NULL,NULL,NULL,'2026-11-29 01:00:16.484413','2026-11-29 01:00:17.397876',2);
INSERT INTO `convmemory_message` VALUES (6,'01a224d1-26f6-72e3-b13f-3758ca9eacec','user','chat','On Monday we watch a heron at the lake. On Monday we watch a heron at the lake. On Monday we watch a heron at the lake. ',NULL,'{\"day\":\"Monday\"}',NULL,NULL,NULL,34,78,NULL,NULL,NULL,'2026-11-29 01:00:16.504871',NULL,2);
INSERT INTO `convmemory_message` VALUES (7,'01a224d1-26f6-72e4-80a0-dbaefe9ce4ed','assistant','chat','I noted the heron for Monday. I noted the heron for Monday. I noted the heron for Monday. ',NULL,NULL,NULL,NULL,'{\"prompt_tokens\":90,\"completion_tokens\":20}',22,100,NULL,NULL,NULL,'2026-11-29 01:00:16.504871',NULL,2);
INSERT INTO `convmemory_message` VALUES (8,'01a224d1-26fa-76fc-9c83-7a3909ccdad1','user','chat','On Tuesday we watch a heron at the lake. On Tuesday we watch a heron at the lake. On Tuesday we watch a heron at the lake. ',NULL,'{\"day\":\"Tuesday\"}',NULL,NULL,NULL,35,135,NULL,NULL,NULL,'2026-11-29 01:00:16.508540',NULL,2);
INSERT INTO `convmemory_message` VALUES (9,'01a224d1-26fa-76fd-958a-777474b3c521','assistant','chat','I noted the heron for Tuesday. I noted the heron for Tuesday. I noted the heron for Tuesday. ',NULL,NULL,NULL,NULL,'{\"prompt_tokens\":90,\"completion_tokens\":20}',24,159,NULL,NULL,NULL,'2026-11-29 01:00:16.508540',NULL,2);
INSERT INTO `convmemory_message` VALUES (1,'01a224d1-2bfa-7728-96b2-13d818e97ed1','user','chat','Which birds are there?',NULL,NULL,NULL,NULL,NULL,10,10,NULL,NULL,NULL,'2026-11-29 01:00:17.809968',NULL,3);
INSERT INTO `convmemory_message` VALUES (2,'01a224d1-2c1a-7108-a97e-464680966e75','assistant','chat','Only a stork.',NULL,NULL,NULL,NULL,NULL,9,19,NULL,1,'','2026-11-29 01:00:17.847198',NULL,3);
INSERT INTO `convmemory_message` VALUES (1,'01a224d1-2c5d-7e3a-bbc6-785bc68eb64e','user','chat','A kingfisher, as an item.',NULL,NULL,'responses','{\"type\":\"message\",\"role\":\"user\",\"content\":\"A kingfisher, as an item.\"}',NULL,14,14,NULL,NULL,NULL,'2026-11-29 01:00:17.957906',NULL,4);
INSERT INTO `convmemory_message` VALUES (1,'01a224d1-2cad-79b5-a85d-e1aacf3ecc55','user','chat','This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. ',NULL,NULL,NULL,NULL,NULL,49,49,NULL,NULL,NULL,'2026-11-29 01:00:18.013024',NULL,5);
INSERT INTO `convmemory_message` VALUES (2,'01a224d1-2cad-79b6-8fe7-1c3945cd9096','user','chat','This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. ',NULL,NULL,NULL,NULL,NULL,49,98,NULL,NULL,NULL,'2026-11-29 01:00:18.013024',NULL,5);
INSERT INTO `convmemory_message` VALUES (3,'01a224d1-2cad-79b7-adf4-18e0b40775ec','user','chat','This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. ',NULL,NULL,NULL,NULL,NULL,49,147,NULL,NULL,NULL,'2026-11-29 01:00:18.013024',NULL,5);
INSERT INTO `convmemory_message` VALUES (4,'01a224d1-2cad-79b8-97d5-5f70a847fe28','user','chat','This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. ',NULL,NULL,NULL,NULL,NULL,49,196,NULL,NULL,NULL,'2026-11-29 01:00:18.013024',NULL,5);
INSERT INTO `convmemory_message` VALUES (5,'01a224d1-2cad-79b9-9853-ce182ca71380','user','chat','This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. ',NULL,NULL,NULL,NULL,NULL,49,245,NULL,NULL,NULL,'2026-11-29 01:00:18.013024',NULL,5);
INSERT INTO `convmemory_message` VALUES (6,'01a224d1-2cad-79ba-9b6e-300755c25e6c','user','chat','This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. ',NULL,NULL,NULL,NULL,NULL,49,294,NULL,NULL,NULL,'2026-11-29 01:00:18.013024',NULL,5);
INSERT INTO `convmemory_message` VALUES (7,'01a224d1-2cad-79bb-ae41-9829f1738815','user','chat','This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. ',NULL,NULL,NULL,NULL,NULL,49,343,NULL,NULL,NULL,'2026-11-29 01:00:18.013024',NULL,5);
INSERT INTO `convmemory_message` VALUES (8,'01a224d1-2cad-79bc-a3f0-50d99b07cd92','user','chat','This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. ',NULL,NULL,NULL,NULL,NULL,49,392,NULL,NULL,NULL,'2026-11-29 01:00:18.013024',NULL,5);
INSERT INTO `convmemory_message` VALUES (9,'01a224d1-2cad-79bd-9bdc-3452409ac02f','user','chat','This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. ',NULL,NULL,NULL,NULL,NULL,49,441,NULL,NULL,NULL,'2026-11-29 01:00:18.013024',NULL,5);
INSERT INTO `convmemory_message` VALUES (10,'01a224d1-2cad-79be-b6ee-edfd81f18e00','user','chat','This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. ',NULL,NULL,NULL,NULL,NULL,49,490,NULL,NULL,NULL,'2026-11-29 01:00:18.013024',NULL,5);
INSERT INTO `convmemory_message` VALUES (11,'01a224d1-2cad-79bf-b6e2-38a8e78f49f8','user','chat','This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. ',NULL,NULL,NULL,NULL,NULL,49,539,NULL,NULL,NULL,'2026-11-29 01:00:18.013024',NULL,5);
INSERT INTO `convmemory_message` VALUES (12,'01a224d1-2cad-79c0-abb8-24fbe7ebf060','user','chat','This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. This waits to be folded. ',NULL,NULL,NULL,NULL,NULL,49,588,NULL,NULL,NULL,'2026-11-29 01:00:18.013024',NULL,5);
CREATE TABLE `convmemory_segment` (
  `first` bigint(20) NOT NULL,
  `last` bigint(20) NOT NULL,
  `data` longtext NOT NULL,
  `session_id` bigint(20) NOT NULL,
  PRIMARY KEY (`session_id`,`first`),
  CONSTRAINT `convmemory_segment_session_id_6fa609ee_fk_convmemory_session_id` FOREIGN KEY (`session_id`) REFERENCES `convmemory_session` (`id`)
) ENGINE=InnoDB;
INSERT INTO `convmemory_segment` VALUES (1,15,'v2	92	!#$!!-*-*-*-*!$	79cb1	!79cb1\n==	\"&(*,\n¶\n48151	\"\nde:noted	#\nde:sunny	/\nes:not	#\nes:sunny	/\nheron	&\'()*+,- &&\'\'(())**++,,--\nlake	&(*, &&((**,,\nmonday	&\' &&\'\'\nnote	#\')+- \'\'))++--\nnumber	\"\nsunni	/\nthursday	,- ,,--\ntuesday	() (())\nwatch	&(*, &&((**,,\nwednesday	*+ **++\n',1);
INSERT INTO `convmemory_segment` VALUES (1,9,'v2	47	!#$!!-*-*	79cb1	!79cb1\n==	\"&(\n¶\n48151	\"\nde:noted	#\nes:not	#\nheron	&\'() &&\'\'(())\nlake	&( &&((\nmonday	&\' &&\'\'\nnote	#\') \'\'))\nnumber	\"\ntuesday	() (())\nwatch	&( &&((\n',2);
INSERT INTO `convmemory_segment` VALUES (1,2,'v2	2	\"\"	79cb1	!79cb1\n==	!\n¶\nbird	!\nstork	\"\n',3);
INSERT INTO `convmemory_segment` VALUES (1,1,'v2	2	#	79cb1	!79cb1\n==	!\n¶\nitem	!\nkingfish	!\n',4);
INSERT INTO `convmemory_segment` VALUES (1,12,'v2	192	111111111111	79cb1	!79cb1\n==	!\"#$%&\'()*+,\n¶\nfold	!\"#$%&\'()*+, !!!!!!!\"\"\"\"\"\"\"#######$$$$$$$%%%%%%%&&&&&&&\'\'\'\'\'\'\'((((((()))))))*******+++++++,,,,,,,\nwait	!\"#$%&\'()*+, !!!!!!!\"\"\"\"\"\"\"#######$$$$$$$%%%%%%%&&&&&&&\'\'\'\'\'\'\'((((((()))))))*******+++++++,,,,,,,\n',5);
CREATE TABLE `convmemory_session` (
  `id` bigint(20) NOT NULL AUTO_INCREMENT,
  `public_id` uuid NOT NULL,
  `alias` varchar(100) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `visitor` varchar(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `key` varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `name_hash` varchar(64) NOT NULL,
  `title` varchar(255) NOT NULL,
  `metadata` longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL CHECK (json_valid(`metadata`)),
  `archived_at` datetime(6) DEFAULT NULL,
  `starred_at` datetime(6) DEFAULT NULL,
  `creation_key` varchar(64) DEFAULT NULL,
  `creation_hash` varchar(64) DEFAULT NULL,
  `last_position` bigint(20) NOT NULL,
  `unpinned_count` bigint(20) NOT NULL,
  `unpinned_tokens` bigint(20) NOT NULL,
  `settled_tokens` bigint(20) NOT NULL,
  `newest_position` bigint(20) NOT NULL,
  `pinned` longtext NOT NULL,
  `pinned_count` smallint(6) NOT NULL,
  `pinned_tokens` bigint(20) NOT NULL,
  `call_position` bigint(20) NOT NULL,
  `answered_position` bigint(20) NOT NULL,
  `exchange_calls` longtext NOT NULL,
  `open_calls` longtext NOT NULL,
  `last_version` bigint(20) NOT NULL,
  `current_version` bigint(20) NOT NULL,
  `covered_position` bigint(20) NOT NULL,
  `covered_count` bigint(20) NOT NULL,
  `covered_tokens` bigint(20) NOT NULL,
  `indexed_position` bigint(20) NOT NULL DEFAULT 0,
  `due_since` datetime(6) DEFAULT NULL,
  `due_revision` bigint(20) NOT NULL,
  `queued_at` datetime(6) DEFAULT NULL,
  `attempts` int(11) NOT NULL,
  `next_attempt_at` datetime(6) DEFAULT NULL,
  `lease_token` varchar(32) NOT NULL,
  `lease_expires_at` datetime(6) DEFAULT NULL,
  `last_error` longtext NOT NULL,
  `rebuild_after` datetime(6) DEFAULT NULL,
  `fold_window` bigint(20) DEFAULT NULL,
  `turn_token` varchar(32) NOT NULL,
  `turn_expires_at` datetime(6) DEFAULT NULL,
  `turn_question` bigint(20) NOT NULL,
  `turn_stopped` tinyint(1) NOT NULL,
  `epoch` bigint(20) NOT NULL,
  `revision` bigint(20) NOT NULL,
  `details` bigint(20) NOT NULL,
  `fork_position` bigint(20) DEFAULT NULL,
  `counter` varchar(100) NOT NULL,
  `created_at` datetime(6) NOT NULL,
  `updated_at` datetime(6) NOT NULL,
  `forked_from_id` bigint(20) DEFAULT NULL,
  `owner_id` int(11) DEFAULT NULL,
  PRIMARY KEY (`id`),
  UNIQUE KEY `public_id` (`public_id`),
  UNIQUE KEY `convmemory_session_name_hash` (`name_hash`),
  UNIQUE KEY `convmemory_session_creation` (`creation_key`),
  KEY `convmemory_session_due` (`alias`,`due_since`),
  KEY `convmemory_session_rebuild` (`alias`,`rebuild_after`),
  KEY `convmemory_session_leased` (`lease_expires_at`),
  KEY `convmemory_session_alias` (`alias`,`id`),
  KEY `convmemory_session_owner` (`owner_id`,`id`),
  KEY `convmemory_session_visitor` (`visitor`,`id`),
  KEY `convmemory_session_forked_from_id_3e731775_fk_convmemor` (`forked_from_id`),
  CONSTRAINT `convmemory_session_forked_from_id_3e731775_fk_convmemor` FOREIGN KEY (`forked_from_id`) REFERENCES `convmemory_session` (`id`),
  CONSTRAINT `convmemory_session_owner_id_d3cf71d5_fk_auth_user_id` FOREIGN KEY (`owner_id`) REFERENCES `auth_user` (`id`)
) ENGINE=InnoDB AUTO_INCREMENT=6;
INSERT INTO `convmemory_session` VALUES (1,'5aa99799-fdc0-4592-8e5a-2fd35fc5189f','default','','trip','4d14bba67ef4f776537fcba37704e717c9084f0351bad2be7434d7edc273bb13','A week at the lake','{\"colour\": \"blue\"}',NULL,'2026-11-29 01:00:17.721252',NULL,NULL,15,14,369,281,14,' 1:9',1,9,14,0,'|2348f99874421257|c3eefb58d7c42440','|2348f99874421257',2,2,13,12,281,15,NULL,6,NULL,0,NULL,'',NULL,'',NULL,NULL,'',NULL,0,0,2,10,1,NULL,'utf8:2','2026-11-29 01:00:16.419338','2026-11-29 01:00:17.721252',NULL,1);
INSERT INTO `convmemory_session` VALUES (2,'b4df45d2-1193-4dc0-9bf6-0fc854cee82c','default','','copy','f3fd1e8d0b19044ce02a9b1dad4de201c50301d2512aa2a20e454253812824f7','Only Monday and Tuesday','{}',NULL,NULL,NULL,NULL,9,8,159,135,9,' 1:9',1,9,0,0,'','',1,0,0,0,0,9,NULL,0,NULL,0,NULL,'',NULL,'',NULL,NULL,'',NULL,0,0,2,2,0,9,'utf8:2','2026-11-29 01:00:17.054834','2026-11-29 01:00:17.388386',1,1);
INSERT INTO `convmemory_session` VALUES (3,'2d099f7f-b571-4a7d-93e8-6fc25ce5ebd3','default','v-1','visit','ae9577445da84beec497afa63330a0c7a596e5557654f4817bd483029a7ad3c2','A visitor\'s','{}','2026-11-29 01:00:17.876181',NULL,'ecdb7ee1f0a0a3216375fa747b045c36452b687a18586c7fdfaae21439e7e89a','967aec6a68d6bcce612978ad236a8b10d39aa57935e6344b63c39eef5c13bcf7',2,2,19,10,2,'',0,0,0,0,'','',0,0,0,0,0,2,NULL,0,NULL,0,NULL,'',NULL,'',NULL,NULL,'',NULL,0,0,0,2,1,NULL,'utf8:2','2026-11-29 01:00:17.747108','2026-11-29 01:00:17.842615',NULL,NULL);
INSERT INTO `convmemory_session` VALUES (4,'3f821e40-6a88-49ce-a59e-6cb09ed523d1','default','','everybody','b3bd5c68d807320b4d13d51c61580b875162ccb26cdd5137e3483b5388f6e128','','{}',NULL,NULL,NULL,NULL,1,1,14,0,1,'',0,0,0,0,'','',0,0,0,0,0,1,NULL,0,NULL,0,NULL,'',NULL,'',NULL,NULL,'',NULL,0,0,0,1,0,NULL,'utf8:2','2026-11-29 01:00:17.918881','2026-11-29 01:00:17.948326',NULL,NULL);
INSERT INTO `convmemory_session` VALUES (5,'fb6aa233-885b-4636-bd7a-fb2f5a7489b7','default','','due','5693a76a83ff26cd76dabe76d70100aed9255bca3b6db7d0cd6fa704cb371237','','{}',NULL,NULL,NULL,NULL,12,12,588,539,12,'',0,0,0,0,'','',0,0,0,0,0,12,'2026-11-29 01:00:18.004477',1,NULL,0,NULL,'',NULL,'',NULL,NULL,'',NULL,0,0,0,1,0,NULL,'utf8:2','2026-11-29 01:00:17.983007','2026-11-29 01:00:18.004477',NULL,NULL);
CREATE TABLE `convmemory_summary` (
  `id` bigint(20) NOT NULL AUTO_INCREMENT,
  `version` bigint(20) unsigned NOT NULL CHECK (`version` >= 0),
  `parent_version` bigint(20) unsigned DEFAULT NULL CHECK (`parent_version` >= 0),
  `first_position` bigint(20) unsigned NOT NULL CHECK (`first_position` >= 0),
  `last_position` bigint(20) unsigned NOT NULL CHECK (`last_position` >= 0),
  `covered_count` bigint(20) unsigned NOT NULL CHECK (`covered_count` >= 0),
  `covered_tokens` bigint(20) unsigned NOT NULL CHECK (`covered_tokens` >= 0),
  `text` longtext NOT NULL,
  `tokens` int(10) unsigned NOT NULL CHECK (`tokens` >= 0),
  `model` varchar(200) NOT NULL,
  `shortened` tinyint(1) NOT NULL,
  `fallback` tinyint(1) NOT NULL,
  `stand_in` tinyint(1) NOT NULL DEFAULT 0,
  `carried` tinyint(1) NOT NULL DEFAULT 0,
  `cut` tinyint(1) NOT NULL DEFAULT 0,
  `building` tinyint(1) NOT NULL,
  `part_end` bigint(20) DEFAULT NULL,
  `prompt_hash` varchar(64) NOT NULL,
  `identifiers` longtext DEFAULT NULL,
  `model_length` int(11) DEFAULT NULL,
  `invalidated_at` datetime(6) DEFAULT NULL,
  `created_at` datetime(6) NOT NULL,
  `session_id` bigint(20) NOT NULL,
  PRIMARY KEY (`id`),
  UNIQUE KEY `convmemory_summary_version` (`session_id`,`version`),
  KEY `convmemory_summary_time` (`session_id`,`created_at`),
  CONSTRAINT `convmemory_summary_session_id_b4796075_fk_convmemory_session_id` FOREIGN KEY (`session_id`) REFERENCES `convmemory_session` (`id`)
) ENGINE=InnoDB AUTO_INCREMENT=3;
INSERT INTO `convmemory_summary` VALUES (1,1,NULL,1,11,10,218,'',67,'extractive',0,0,0,0,0,0,NULL,'d96300debc654701b8edbf5a06f30ef792f1cf5c5f84c6f8486bd4fc2622392f',NULL,NULL,'2026-11-29 01:00:17.192206','2026-11-29 01:00:17.018891',1);
INSERT INTO `convmemory_summary` VALUES (2,2,NULL,1,13,12,281,'2026-11-28\nUser: My number is 48151. [This message was removed.] On Monday we watch a heron at the lake.\nAssistant: I noted the heron for Tuesday. I noted the heron for Wednesday. I noted the heron for Thursday.',71,'extractive',0,0,0,0,0,0,NULL,'d96300debc654701b8edbf5a06f30ef792f1cf5c5f84c6f8486bd4fc2622392f','[\"48151\"]',NULL,NULL,'2026-11-29 01:00:17.649277',1);
CREATE TABLE `convmemory_usedkey` (
  `key_hash` varchar(64) NOT NULL,
  `first_position` bigint(20) NOT NULL,
  `size` int(11) NOT NULL,
  `content` varchar(64) NOT NULL,
  `gone_at` datetime(6) DEFAULT NULL,
  `session_id` bigint(20) NOT NULL,
  PRIMARY KEY (`session_id`,`key_hash`),
  CONSTRAINT `convmemory_usedkey_session_id_a7d9ed52_fk_convmemory_session_id` FOREIGN KEY (`session_id`) REFERENCES `convmemory_session` (`id`)
) ENGINE=InnoDB;
INSERT INTO `convmemory_usedkey` VALUES ('a7937b64b8caa58f03721bb6bacf5c78cb235febe0e70b1b84cd99541461a08e',2,2,'551714f05c3768ed6d20be4b289c607b6be4956f8d3f9b51f8ec63ecc3f2cb4e',NULL,1);
INSERT INTO `convmemory_usedkey` VALUES ('c66790da5943c4466dd80634deb63f4e19f07e7f81624f222b86fecf9fff6445',1,1,'011683e4607922e153890bf7fd5272db2694be4d749170260e9f9e129bebe712',NULL,3);
CREATE TABLE `django_admin_log` (
  `id` int(11) NOT NULL AUTO_INCREMENT,
  `action_time` datetime(6) NOT NULL,
  `object_id` longtext DEFAULT NULL,
  `object_repr` varchar(200) NOT NULL,
  `action_flag` smallint(5) unsigned NOT NULL CHECK (`action_flag` >= 0),
  `change_message` longtext NOT NULL,
  `content_type_id` int(11) DEFAULT NULL,
  `user_id` int(11) NOT NULL,
  PRIMARY KEY (`id`),
  KEY `django_admin_log_content_type_id_c4bce8eb_fk_django_co` (`content_type_id`),
  KEY `django_admin_log_user_id_c564eba6_fk_auth_user_id` (`user_id`),
  CONSTRAINT `django_admin_log_content_type_id_c4bce8eb_fk_django_co` FOREIGN KEY (`content_type_id`) REFERENCES `django_content_type` (`id`),
  CONSTRAINT `django_admin_log_user_id_c564eba6_fk_auth_user_id` FOREIGN KEY (`user_id`) REFERENCES `auth_user` (`id`)
) ENGINE=InnoDB;
CREATE TABLE `django_content_type` (
  `id` int(11) NOT NULL AUTO_INCREMENT,
  `app_label` varchar(100) NOT NULL,
  `model` varchar(100) NOT NULL,
  PRIMARY KEY (`id`),
  UNIQUE KEY `django_content_type_app_label_model_76bd3d3b_uniq` (`app_label`,`model`)
) ENGINE=InnoDB AUTO_INCREMENT=15;
INSERT INTO `django_content_type` VALUES (1,'admin','logentry');
INSERT INTO `django_content_type` VALUES (2,'auth','permission');
INSERT INTO `django_content_type` VALUES (3,'auth','group');
INSERT INTO `django_content_type` VALUES (4,'auth','user');
INSERT INTO `django_content_type` VALUES (5,'contenttypes','contenttype');
INSERT INTO `django_content_type` VALUES (6,'sessions','session');
INSERT INTO `django_content_type` VALUES (7,'convmemory','aliasstate');
INSERT INTO `django_content_type` VALUES (8,'convmemory','session');
INSERT INTO `django_content_type` VALUES (9,'convmemory','segment');
INSERT INTO `django_content_type` VALUES (10,'convmemory','message');
INSERT INTO `django_content_type` VALUES (11,'convmemory','usedkey');
INSERT INTO `django_content_type` VALUES (12,'convmemory','attempt');
INSERT INTO `django_content_type` VALUES (13,'convmemory','summary');
INSERT INTO `django_content_type` VALUES (14,'convmemory_embeddings','vector');
CREATE TABLE `django_migrations` (
  `id` bigint(20) NOT NULL AUTO_INCREMENT,
  `app` varchar(255) NOT NULL,
  `name` varchar(255) NOT NULL,
  `applied` datetime(6) NOT NULL,
  PRIMARY KEY (`id`)
) ENGINE=InnoDB AUTO_INCREMENT=21;
INSERT INTO `django_migrations` VALUES (1,'contenttypes','0001_initial','2026-11-29 01:00:09.915207');
INSERT INTO `django_migrations` VALUES (2,'auth','0001_initial','2026-11-29 01:00:10.926353');
INSERT INTO `django_migrations` VALUES (3,'admin','0001_initial','2026-11-29 01:00:11.118342');
INSERT INTO `django_migrations` VALUES (4,'admin','0002_logentry_remove_auto_add','2026-11-29 01:00:11.131611');
INSERT INTO `django_migrations` VALUES (5,'admin','0003_logentry_add_action_flag_choices','2026-11-29 01:00:11.147705');
INSERT INTO `django_migrations` VALUES (6,'contenttypes','0002_remove_content_type_name','2026-11-29 01:00:11.314612');
INSERT INTO `django_migrations` VALUES (7,'auth','0002_alter_permission_name_max_length','2026-11-29 01:00:11.395446');
INSERT INTO `django_migrations` VALUES (8,'auth','0003_alter_user_email_max_length','2026-11-29 01:00:11.481861');
INSERT INTO `django_migrations` VALUES (9,'auth','0004_alter_user_username_opts','2026-11-29 01:00:11.500146');
INSERT INTO `django_migrations` VALUES (10,'auth','0005_alter_user_last_login_null','2026-11-29 01:00:11.590247');
INSERT INTO `django_migrations` VALUES (11,'auth','0006_require_contenttypes_0002','2026-11-29 01:00:11.594308');
INSERT INTO `django_migrations` VALUES (12,'auth','0007_alter_validators_add_error_messages','2026-11-29 01:00:11.608489');
INSERT INTO `django_migrations` VALUES (13,'auth','0008_alter_user_username_max_length','2026-11-29 01:00:11.662348');
INSERT INTO `django_migrations` VALUES (14,'auth','0009_alter_user_last_name_max_length','2026-11-29 01:00:11.730926');
INSERT INTO `django_migrations` VALUES (15,'auth','0010_alter_group_name_max_length','2026-11-29 01:00:11.816961');
INSERT INTO `django_migrations` VALUES (16,'auth','0011_update_proxy_permissions','2026-11-29 01:00:11.834093');
INSERT INTO `django_migrations` VALUES (17,'auth','0012_alter_user_first_name_max_length','2026-11-29 01:00:11.894312');
INSERT INTO `django_migrations` VALUES (18,'convmemory','0001_tables','2026-11-29 01:00:14.863996');
INSERT INTO `django_migrations` VALUES (19,'convmemory_embeddings','0001_vectors','2026-11-29 01:00:15.086190');
INSERT INTO `django_migrations` VALUES (20,'sessions','0001_initial','2026-11-29 01:00:15.182111');
CREATE TABLE `django_session` (
  `session_key` varchar(40) NOT NULL,
  `session_data` longtext NOT NULL,
  `expire_date` datetime(6) NOT NULL,
  PRIMARY KEY (`session_key`),
  KEY `django_session_expire_date_a5c62663` (`expire_date`)
) ENGINE=InnoDB;

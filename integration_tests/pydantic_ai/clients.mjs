// Talks with the two views of docs/guides/pydantic-ai.md as a page does. It prints what the server has after each step.
// Arguments: the address of the site, and the headers as JSON.
import { HttpAgent } from "@ag-ui/client";
import { AbstractChat, DefaultChatTransport, lastAssistantMessageIsCompleteWithApprovalResponses } from "ai-7";

const [site, json] = process.argv.slice(2);
const headers = JSON.parse(json);
const steps = [];

async function reload(url, name) {
  const response = await fetch(url, { headers });
  const messages = await response.json();
  if (name) steps.push([name, messages.map(textOf).filter(Boolean)]);
  return messages;
}

function textOf(message) {
  const parts = message.parts ?? [{ text: message.content ?? "" }];
  return parts.map((part) => part.text ?? (part.output ? `[${part.output}]` : "")).join("");
}

// What useChat of @ai-sdk/react is made of, with a state of plain values in the place of React's.
class PlainState {
  status = "ready";
  error = undefined;
  snapshot = structuredClone;
  constructor(messages) {
    this.messages = messages;
  }
  pushMessage = (message) => (this.messages = [...this.messages, message]);
  popMessage = () => (this.messages = this.messages.slice(0, -1));
  replaceMessage = (index, message) => (this.messages = this.messages.with(index, message));
}

async function useChat(url) {
  const api = url;
  const messages = await reload(url);
  return new AbstractChat({
    id: "the page's own",
    state: new PlainState(messages),
    transport: new DefaultChatTransport({ api, headers }),
    sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithApprovalResponses,
    onError: (error) => steps.push(["error", String(error)]),
  });
}

async function withUseChat(url) {
  await (await useChat(url)).sendMessage({ text: "Question 1?" });
  await reload(url, "asked");
  await (await useChat(url)).sendMessage({ text: "Question 2?" });
  await reload(url, "asked after a reload");
  await (await useChat(url)).regenerate();
  await reload(url, "regenerated");
  const edited = await useChat(url);
  await edited.sendMessage({ text: "Another question?", messageId: edited.messages[0].id });
  await reload(url, "edited");
  await (await useChat(url)).sendMessage({ text: "Pay." });
  const approving = await useChat(url);
  const { approval } = approving.messages.at(-1).parts.find((part) => part.approval);
  await approving.addToolApprovalResponse({ id: approval.id, approved: true });
  while (approving.status !== "ready" && approving.status !== "error") await new Promise((go) => setTimeout(go, 10));
  await reload(url, "approved");
}

async function agent(url) {
  return new HttpAgent({ url, headers, threadId: "the page's own", initialMessages: await reload(url) });
}

async function withAGUI(url) {
  const ask = async (text, name) => {
    const page = await agent(url);
    page.addMessage({ id: crypto.randomUUID(), role: "user", content: text });
    await page.runAgent();
    if (name) await reload(url, name);
    return page;
  };
  await ask("Question 1?", "asked");
  await ask("Question 2?", "asked after a reload");
  const again = await agent(url);
  again.setMessages(again.messages.slice(0, -1));
  await again.runAgent();
  await reload(url, "regenerated");
  const edited = await agent(url);
  edited.setMessages([{ ...edited.messages[0], content: "Another question?" }]);
  await edited.runAgent();
  await reload(url, "edited");
  const [interrupt] = (await ask("Pay.")).pendingInterrupts;
  const approving = await agent(url);
  await approving.runAgent({ resume: [{ interruptId: interrupt.id, status: "resolved", payload: { approved: true } }] });
  await reload(url, "approved");
}

await (site.includes("use-chat") ? withUseChat(site) : withAGUI(site));
console.log(JSON.stringify(steps));

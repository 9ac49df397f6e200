// The chart beside the conversation: what is stored grows, and the next prompt does not. It begins when the page is opened.

const WIDTH = 280;
const HEIGHT = 90;

// A point for each number of messages that the panel has shown.
const points = [];

// Add what the panel says now, and draw. The panel is replaced when the memory changes.
export function grow(panel) {
  const { last, stored, prompt, budget } = Object.fromEntries(
    Object.entries(panel.querySelector(".state").dataset).map(([name, text]) => [name, Number(text)]),
  );
  if (points.at(-1)?.last === last) points.pop();
  points.push({ last, stored, prompt });
  if (points.length < 3) return;
  const start = points[0].last;
  const most = Math.max(budget, ...points.map((point) => point.stored));
  const x = (point) => ((point.last - start) / (last - start)) * WIDTH;
  const y = (tokens) => HEIGHT - 2 - (tokens / most) * (HEIGHT - 4);
  const line = (name) => `M${points.map((point) => `${x(point)} ${y(point[name])}`).join("L")}`;
  const paths = { stored: line("stored"), prompt: line("prompt"), budget: budget ? `M0 ${y(budget)}H${WIDTH}` : "" };
  for (const figure of document.querySelectorAll(".growth")) {
    for (const [name, path] of Object.entries(paths)) figure.querySelector(`path.${name}`).setAttribute("d", path);
    figure.hidden = false;
  }
}

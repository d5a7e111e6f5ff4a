// Server-sent events from a POST, which the browser's own EventSource cannot send.

/** Each event of a text/event-stream body: its name, and its data read as JSON. */
export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + value).replaceAll("\r\n", "\n").split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const event = eventOf(block);
      if (event.data !== "") yield { name: event.name, data: JSON.parse(event.data) };
    }
  }
}

function eventOf(block) {
  const event = { name: "message", data: "" };
  for (const line of block.split("\n")) {
    const [, field, value] = /^([^:]*):? ?(.*)$/s.exec(line);
    if (field === "event") event.name = value;
    if (field === "data") event.data += value;
  }
  return event;
}

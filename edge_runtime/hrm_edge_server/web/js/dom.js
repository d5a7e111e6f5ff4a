// Elements without markup: what a server sends stays text.

const SVG = "http://www.w3.org/2000/svg";

export const $ = (id) => document.getElementById(id);

/** An element with attributes, listeners under `on`, and children; a null attribute is left out. */
export function element(tag, attributes = {}, ...children) {
  return dressed(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return dressed(document.createElementNS(SVG, tag), attributes, children);
}

/** Sets text only if it differs: a redraw of the same thing announces nothing. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function setAttribute(node, name, value) {
  if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

/** The words as "a, b or c". */
export const either = (words) => words.join(", ").replace(/, ([^,]*)$/, " or $1");

function dressed(made, { on = {}, ...attributes }, children) {
  for (const [name, value] of Object.entries(attributes))
    if (value !== null) made.setAttribute(name, value);
  for (const [name, listener] of Object.entries(on)) made.addEventListener(name, listener);
  made.append(...children);
  return made;
}

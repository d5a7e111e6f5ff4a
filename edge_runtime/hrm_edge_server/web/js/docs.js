// The description of every route, from openapi.json.

import { $, either, element } from "./dom.js";

function typeOf(schema) {
  if (!schema) return "";
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.anyOf) return either(schema.anyOf.map(typeOf));
  if (schema.enum) return either(schema.enum.map((value) => JSON.stringify(value)));
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.prefixItems) return `[${schema.prefixItems.map(typeOf).join(", ")}]`;
  if (schema.type === "array") return `${typeOf(schema.items) || "any"}[]`;
  if (schema.type === "object" && schema.additionalProperties)
    return `{name: ${typeOf(schema.additionalProperties)}}`;
  return schema.type || "any";
}

function limitsOf(schema) {
  const inner = schema.anyOf ? schema.anyOf[0] : schema;
  const said = [];
  if (inner.minimum !== undefined) said.push(`at least ${inner.minimum}`);
  if (inner.maximum !== undefined) said.push(`at most ${inner.maximum}`);
  if (inner.maxLength !== undefined) said.push(`at most ${inner.maxLength} characters`);
  return said.join(", ");
}

const cell = (...content) => element("td", {}, ...content);
const code = (text) => element("code", {}, text);

/** A table that scrolls on its own. */
function wideTable(...parts) {
  return element("div", { class: "wide", tabindex: 0 }, element("table", {}, ...parts));
}

function fieldTable(schema) {
  const rows = Object.entries(schema.properties || {}).map(([name, field]) => {
    const needed = (schema.required || []).includes(name) ? "" : "optional";
    const about = [field.description, limitsOf(field), needed].filter(Boolean).join(" · ");
    return element("tr", {}, cell(code(name)), cell(code(typeOf(field))), cell(about));
  });
  const names = ["Field", "Type", "Meaning"].map((text) => element("th", {}, text));
  const head = element("thead", {}, element("tr", {}, ...names));
  return wideTable(head, element("tbody", {}, ...rows));
}

/** The schema itself, if it only refers to one. */
function resolved(schema, schemas) {
  return schema?.$ref ? schemas[typeOf(schema)] : schema;
}

function contentSchema(part) {
  const content = part && part.content && Object.values(part.content)[0];
  return content ? content.itemSchema || content.schema : null;
}

function operation(path, method, described, schemas) {
  const name = element("span", { class: "method" }, method.toUpperCase());
  const [about] = (described.description || described.summary || "").split("\n");
  const made = element("details", {}, element("summary", {}, name, code(path), ` ${about}`));
  const body = resolved(contentSchema(described.requestBody), schemas);
  if (body) made.append(element("p", {}, "Request, application/json"), fieldTable(body));
  const rows = Object.entries(described.responses)
    .sort()
    .map(([status, response]) =>
      element(
        "tr",
        {},
        cell(status),
        cell(response.description),
        cell(code(typeOf(contentSchema(response))))
      )
    );
  made.append(element("p", {}, "Answers"), wideTable(element("tbody", {}, ...rows)));
  made.open = path === "/solve";
  return made;
}

function schemaDetails([name, schema]) {
  const about = element("p", { class: "quiet" }, schema.description || "");
  const made = element("details", {}, element("summary", {}, name), about);
  if (schema.properties) made.append(fieldTable(schema));
  return made;
}

/** A request to edit and send, from the examples of the models that are served. */
function tryIt(examples) {
  $("examples").append(...Object.keys(examples).map((name) => element("option", {}, name)));
  const showCommand = () => {
    $("example").textContent =
      `curl ${new URL("solve", location)} -d '${$("body").value.replaceAll("'", "'\\''")}'`;
  };
  const choose = () => {
    $("body").value = JSON.stringify(examples[$("examples").value].value);
    showCommand();
  };
  $("examples").onchange = choose;
  $("body").oninput = showCommand;
  $("send").onclick = async () => {
    $("send").disabled = true;
    $("sent").textContent = "Thinking …";
    try {
      const response = await fetch("solve", {
        method: "POST",
        headers: { "content-type": "application/json" },
        body: $("body").value
      });
      $("sent").textContent = `${response.status} ${response.statusText}`;
      $("said").textContent = JSON.stringify(await response.json(), null, 1).replace(
        /\[\s+([^[\]{}]*?)\s+\]/g,
        (_, cells) => `[${cells.replace(/\s+/g, " ")}]`
      );
      $("said").hidden = false;
    } catch {
      $("sent").textContent = "The server cannot be reached.";
    }
    $("send").disabled = false;
  };
  choose();
}

async function start() {
  let api;
  try {
    api = await (await fetch("openapi.json")).json();
  } catch {
    $("about").textContent = "The server cannot be reached; reload when it is back.";
    return;
  }
  $("about").textContent = api.info.description;
  tryIt(api.paths["/solve"].post.requestBody.content["application/json"].examples);
  $("paths").append(
    ...Object.entries(api.paths).flatMap(([path, methods]) =>
      Object.entries(methods).map(([method, described]) =>
        operation(path, method, described, api.components.schemas)
      )
    )
  );
  $("schemas").append(...Object.entries(api.components.schemas).map(schemaDetails));
}
start();

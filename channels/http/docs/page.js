// Shows /openapi.json: operations by group, schemas, and a form to try each operation. All text goes in as text.
"use strict";

const METHODS = ["get", "put", "post", "patch", "delete"];
const byId = (id) => document.getElementById(id);

function make(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== false && value !== undefined) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

// Text in which `names` are set apart.
const prose = (text) => (text || "").split("`").map((part, index) => (index % 2 ? make("code", {}, part) : part));

// Fills a <details> when it is first opened: a long document stays quick.
function folded(title, fill, attributes = {}) {
  const inside = make("div");
  const whole = make("details", attributes, make("summary", {}, ...title), inside);
  whole.addEventListener("toggle", () => { if (whole.open && !inside.firstChild) inside.append(...fill()); });
  return whole;
}

// ── schemas ──────────────────────────────────────────────────────────────────────────────────────────────────────────

let api;
const named = (ref) => ref.split("/").pop();
const resolved = (thing) => (thing.$ref ? api.components[thing.$ref.split("/")[2]][named(thing.$ref)] : thing);

function type(schema) {
  if (!schema || !Object.keys(schema).length) return ["any"];
  if (schema.$ref) return [make("a", { href: `#schema-${named(schema.$ref)}` }, named(schema.$ref))];
  const parts = schema.anyOf || schema.oneOf || schema.allOf;
  if (parts) return parts.flatMap((part, index) => (index ? [" | ", ...type(part)] : type(part)));
  if (schema.enum) return [schema.enum.map((one) => JSON.stringify(one)).join(" | ")];
  if ("const" in schema) return [JSON.stringify(schema.const)];
  if (schema.type === "array") return ["list of ", ...(schema.prefixItems ? ["…"] : type(schema.items))];
  if (schema.type === "object" && typeof schema.additionalProperties === "object")
    return ["object of ", ...type(schema.additionalProperties)];
  const limits = ["pattern", "format", "minimum", "maximum", "minLength", "maxLength", "contentMediaType"];
  const said = limits.filter((key) => key in schema).map((key) => `${key} ${schema[key]}`);
  return [[].concat(schema.type ?? "any").join(" | ") + (said.length ? ` (${said.join(", ")})` : "")];
}

function row(name, schema, required, text) {
  const start = "default" in schema && schema.default !== null ? ` = ${JSON.stringify(schema.default)}` : "";
  return make("tr", {},
    make("td", {}, make("code", {}, name), required ? " *" : ""),
    make("td", { class: "type" }, ...type(schema), start),
    make("td", { class: "quiet" }, ...prose(text || schema.description)));
}

function shape(schema) {
  const body = resolved(schema);
  if (!body.properties) return make("p", { class: "type" }, ...type(schema));
  const rows = Object.entries(body.properties);
  return make("table", {}, ...rows.map(([name, one]) => row(name, one, (body.required || []).includes(name))));
}

function example(schema, depth = 0) {
  const found = resolved(schema);
  if ("default" in found) return found.default;
  if (found.enum) return found.enum[0];
  const parts = found.anyOf || found.oneOf;
  if (parts) return example(parts[0], depth);
  if (found.type === "array") return [];
  if (found.type === "object") {
    const needed = depth > 3 ? [] : found.required || [];
    return Object.fromEntries(needed.map((name) => [name, example(found.properties[name], depth + 1)]));
  }
  return { string: "", integer: 0, number: 0, boolean: false }[found.type] ?? null;
}

// ── operations ───────────────────────────────────────────────────────────────────────────────────────────────────────

function operation(method, path, given) {
  const title = [make("span", { class: `method ${method}` }, method.toUpperCase()),
    make("span", { class: "path" }, path), make("span", { class: "quiet" }, "  ", ...prose(given.summary))];
  const words = `${method} ${path} ${given.summary} ${given.description || ""} ${given.tags}`.toLowerCase();
  return folded(title, () => [...described(given), trial(method, path, given)], { id: given.operationId, "data-words": words });
}

function described(given) {
  const parts = [make("p", { class: "text" }, ...prose(given.description))];
  if (given["x-endless"]) parts.push(make("p", {}, `The answer has no end: ${given["x-endless"]}.`));
  if (given.parameters) {
    const rows = given.parameters.map((one) => row(`${one.name} (${one.in})`, one.schema, one.required, one.description));
    parts.push(make("h3", {}, "Parameters"), make("table", {}, ...rows));
  }
  for (const [media, content] of Object.entries(given.requestBody?.content || {}))
    parts.push(make("h3", {}, `Body: ${media}`), shape(content.schema));
  parts.push(make("h3", {}, "Answers"), make("table", {}, ...Object.entries(given.responses).map(answer)));
  return parts;
}

function answer([status, given]) {
  const found = resolved(given);
  const kinds = Object.entries(found.content || {}).flatMap(([media, { schema }]) => [
    make("div", {}, `${media}: `, make("span", { class: "type" }, ...type(schema)))]);
  const headers = Object.entries(found.headers || {}).map(([name, { description }]) =>
    make("div", { class: "quiet" }, `${name}: `, ...prose(description)));
  return make("tr", {}, make("td", {}, status), make("td", {}, ...prose(found.description), ...kinds, ...headers));
}

// ── trying it ────────────────────────────────────────────────────────────────────────────────────────────────────────

function trial(method, path, given) {
  const media = Object.keys(given.requestBody?.content || {})[0];
  const schema = media && given.requestBody.content[media].schema;
  const inputs = (given.parameters || []).map((one) => labelled(`${one.name} (${one.in})`,
    make("input", { name: `${one.in}:${one.name}`, required: one.required })));
  if (media === "application/json")
    inputs.push(labelled("Body", make("textarea", { name: "json", spellcheck: "false" },
      JSON.stringify(example(schema), null, 2))));
  else if (media)
    for (const [name, one] of Object.entries(schema.properties))
      inputs.push(labelled(name, make("input", one.type === "array"
        ? { name: `form:${name}`, type: "file", multiple: true } : { name: `form:${name}` })));
  const said = make("p", { role: "status" });
  const shown = make("pre", { hidden: true, tabindex: "0", "aria-label": "Answer" });
  const stop = make("button", { type: "button", disabled: true }, "Stop");
  const form = make("form", {}, make("h3", {}, "Try it"), ...inputs,
    make("button", {}, "Send"), " ", stop, said, shown);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const control = new AbortController();
    stop.disabled = false;
    stop.onclick = () => control.abort();
    shown.hidden = false;
    shown.textContent = "";
    try {
      await send(method, path, media, new FormData(form), control.signal, said, shown);
    } catch (error) {
      said.textContent = error.name === "AbortError" ? "Stopped" : String(error);
      said.className = "failed";
    }
    stop.disabled = true;
  });
  return form;
}

const labelled = (text, input) => make("label", {}, `${text} `, input);

async function send(method, path, media, values, signal, said, shown) {
  const query = new URLSearchParams();
  const headers = new Headers();
  const fields = media?.startsWith("multipart/") ? new FormData() : new URLSearchParams();
  for (const [key, value] of values) {
    const [where, name] = [key.slice(0, key.indexOf(":")), key.slice(key.indexOf(":") + 1)];
    if (value === "" || (value instanceof File && !value.name)) continue;
    if (where === "path") path = path.replace(`{${name}}`, encodeURIComponent(value));
    else if (where === "query") query.append(name, value);
    else if (where === "header") headers.set(name, value);
    else if (where === "form") fields.append(name, value);
  }
  if (byId("key").value) headers.set("X-Api-Key", byId("key").value);
  const csrf = document.cookie.match(/(?:^|; )csrf_token=([^;]*)/);
  if (csrf && method !== "get") headers.set("X-CSRF-Token", decodeURIComponent(csrf[1]));
  if (media === "application/json") headers.set("Content-Type", media);
  const body = !media ? undefined : media === "application/json" ? values.get("json") : fields;
  const url = String(query) ? `${path}?${query}` : path;
  const response = await fetch(url, { method: method.toUpperCase(), headers, body, signal });
  said.textContent = `${response.status} ${response.statusText}  ${response.headers.get("Content-Type") || ""}`;
  said.className = response.ok ? "" : "failed";
  if (response.headers.get("Content-Type")?.startsWith("application/json")) {
    const text = await response.text();
    try { shown.textContent = JSON.stringify(JSON.parse(text), null, 2); } catch { shown.textContent = text; }
  } else if (response.body) {
    const decoder = new TextDecoder();
    for (const reader = response.body.getReader(); ;) {
      const { done, value } = await reader.read();
      if (done) return;
      shown.append(decoder.decode(value, { stream: true }));
    }
  }
}

// ── the page ─────────────────────────────────────────────────────────────────────────────────────────────────────────

function show(given) {
  api = given;
  document.title = byId("title").textContent = `${api.info.title} API ${api.info.version}`;
  byId("introduction").replaceChildren(...prose(api.info.description));
  const groups = new Map(api.tags.map((tag) => [tag.name, []]));
  for (const [path, methods] of Object.entries(api.paths))
    for (const method of METHODS)
      if (methods[method]) groups.get(methods[method].tags[0]).push(operation(method, path, methods[method]));
  for (const { name, description } of api.tags) {
    byId("tags").append(make("a", { href: `#tag-${name}` }, name));
    byId("operations").append(make("section", {}, make("h2", { id: `tag-${name}` }, name),
      make("p", { class: "quiet" }, ...prose(description)), ...groups.get(name)));
  }
  byId("tags").append(make("a", { href: "#schemas" }, "Schemas"));
  for (const [name, schema] of Object.entries(api.components.schemas))
    byId("types").append(folded([make("code", {}, name)],
      () => [make("p", { class: "text" }, ...prose(schema.description)), shape(schema)], { id: `schema-${name}` }));
  filter();
  openNamed();
}

function filter() {
  const words = byId("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  let found = 0;
  for (const section of document.querySelectorAll("section")) {
    let inside = 0;
    for (const one of section.querySelectorAll("details")) {
      one.hidden = !words.every((word) => one.dataset.words.includes(word));
      inside += one.hidden ? 0 : 1;
    }
    section.hidden = !inside;
    found += inside;
  }
  byId("found").textContent = `${found} operations`;
}

function openNamed() {
  const target = location.hash && byId(decodeURIComponent(location.hash.slice(1)));
  if (target?.tagName === "DETAILS") target.open = true;
  target?.scrollIntoView?.();
}

function theme() {
  const dark = document.documentElement.dataset.theme
    ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "light" : "dark";
}

byId("search").addEventListener("input", filter);
byId("theme").addEventListener("click", theme);
addEventListener("hashchange", openNamed);
addEventListener("keydown", (event) => {
  if (event.key !== "/" || /^(INPUT|TEXTAREA)$/.test(document.activeElement.tagName)) return;
  event.preventDefault();
  byId("search").focus();
});
fetch("openapi.json").then((response) => response.json()).then(show)
  .catch((error) => { byId("found").textContent = `openapi.json could not be read: ${error}`; });

// The script of the frame: takes a diagram's source, draws it, and tells how tall it is, or that it cannot be drawn.

addEventListener("message", async ({ data, source }) => {
  if (source !== parent || typeof data?.source !== "string") return;
  const { mermaid } = /** @type {any} */ (globalThis);
  mermaid.initialize({ startOnLoad: false, securityLevel: "strict", theme: data.theme === "dark" ? "dark" : "neutral" });
  try {
    const { svg } = await mermaid.render("diagram", data.source);
    document.body.replaceChildren(...new DOMParser().parseFromString(svg, "text/html").body.childNodes);
    parent.postMessage({ height: document.body.scrollHeight }, "*");
  } catch (error) {
    parent.postMessage({ problem: String(error) }, "*");
  }
});
parent.postMessage({ ready: true }, "*");

// A classic script for the sandboxed frame, which has no origin to load modules from.
import mermaid from "mermaid";

globalThis.mermaid = mermaid;

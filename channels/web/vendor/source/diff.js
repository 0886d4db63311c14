export { structuredPatch } from "diff";

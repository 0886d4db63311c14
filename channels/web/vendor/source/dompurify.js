export { default as DOMPurify } from "dompurify";

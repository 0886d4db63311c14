export { GlobalWorkerOptions, TextLayer, getDocument } from "pdfjs-dist/build/pdf.mjs";

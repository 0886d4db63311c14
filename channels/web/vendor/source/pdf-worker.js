export { WorkerMessageHandler } from "pdfjs-dist/build/pdf.worker.mjs";

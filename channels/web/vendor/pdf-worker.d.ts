// The worker of pdf.js: it listens as soon as it is imported.
export const WorkerMessageHandler: object;

// The worker that reads documents: the library listens by itself.

import { WorkerMessageHandler } from "../vendor/pdf-worker.js";

Object.freeze(WorkerMessageHandler);

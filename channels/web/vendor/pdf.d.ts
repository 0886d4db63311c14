// What the page uses of pdf.js.
export const GlobalWorkerOptions: { workerPort: Worker | null };
export interface Viewport { width: number; height: number }
export interface PdfPage {
  getViewport(options: { scale: number }): Viewport;
  render(options: { canvas: HTMLCanvasElement; viewport: Viewport }): { promise: Promise<void>; cancel(): void };
  streamTextContent(): ReadableStream;
  cleanup(): boolean;
}
export interface PdfDocument { numPages: number; getPage(number: number): Promise<PdfPage> }
export function getDocument(options: Record<string, unknown>): { promise: Promise<PdfDocument>; destroy(): Promise<void> };
export class TextLayer {
  constructor(options: { textContentSource: ReadableStream; container: HTMLElement; viewport: Viewport });
  render(): Promise<void>;
  cancel(): void;
}

export declare function renderToString(source: string, options: Record<string, unknown>): string;

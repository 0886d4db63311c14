export declare function structuredPatch(...values: any[]): { hunks: { lines: string[] }[] };

export declare const hljs: any;

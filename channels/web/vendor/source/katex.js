import katex from "katex";

export const renderToString = katex.renderToString;

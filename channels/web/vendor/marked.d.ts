export { Lexer, Marked } from "marked";

// Rules for the page's own scripts: what is surely wrong, and what the content policy forbids.

export default [
  { ignores: ["**/vendor/**"] },
  {
    files: ["**/*.js"],
    languageOptions: { ecmaVersion: 2024, sourceType: "module" },
    rules: {
      "array-callback-return": "error", "consistent-return": "off", "constructor-super": "error", eqeqeq: ["error", "always", { null: "ignore" }],
      "for-direction": "error", "getter-return": "error", "no-async-promise-executor": "error", "no-class-assign": "error", "no-compare-neg-zero": "error",
      "no-cond-assign": "error", "no-const-assign": "error", "no-constant-condition": ["error", { checkLoops: false }], "no-dupe-args": "error",
      "no-dupe-class-members": "error", "no-dupe-keys": "error", "no-duplicate-case": "error", "no-else-return": "error", "no-eval": "error", "no-ex-assign": "error",
      "no-fallthrough": "error", "no-implied-eval": "error", "no-new-func": "error", "no-self-assign": "error", "no-sparse-arrays": "error", "no-this-before-super": "error",
      "no-throw-literal": "error", "no-unreachable": "error", "no-unsafe-finally": "error", "no-unused-vars": ["error", { argsIgnorePattern: "^_", varsIgnorePattern: "^_" }],
      "no-useless-catch": "error", "no-var": "error", "prefer-const": "error", "use-isnan": "error", "valid-typeof": "error",
      "no-restricted-properties": ["error", { property: "innerHTML", message: "strings become elements in markdown/safe.js only" }, { property: "outerHTML" }, { property: "insertAdjacentHTML" }],
      "no-restricted-syntax": ["error", { selector: "TaggedTemplateExpression[tag.name='html'] TemplateElement[value.raw=/ style=\"/]", message: "the content policy forbids styles in markup" }],
    },
  },
];

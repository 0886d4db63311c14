export const view = ({ html, t }) => () => html`<h1>${t("title")}</h1>`;

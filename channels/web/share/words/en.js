// The words of sharing in English.

/** @type {Record<string, string>} */
export const en = {
  "share.accounts": "People of this server",
  "share.at": "Shown is the chosen moment; files that were presented by then are shown as they are now.",
  "share.audience": "Who may read it",
  "share.events": "Also show the timeline up to there",
  "share.events.text": "With it they see everything as you do: reasoning, output of tools, prompts with what is remembered of you, names of files, tokens and cost.",
  "share.everybody": "Everybody who has the address",
  "share.of.accounts": "people of this server",
  "share.of.everybody": "everybody",
  "share.what.accounts": "Whoever has the address and an account here, whatever their role, may read the messages and the files that were presented. They can change nothing.",
  "share.withEvents": "with the timeline",
  "shared.by": "Shared {time} by {who}, to be read only.",
  "shared.timeline": "Timeline up to there",
};

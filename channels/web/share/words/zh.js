// The words of sharing in Chinese.

/** @type {Record<string, string>} */
export const zh = {
  "share.accounts": "此服务器的用户",
  "share.at": "显示所选时刻的会话；当时已呈现的文件按现在的内容显示。",
  "share.audience": "谁可以阅读",
  "share.events": "同时显示到该处的时间线",
  "share.events.text": "他们将看到您所见的一切：推理、工具输出、包含关于您的记忆的提示词、文件名、令牌和费用。",
  "share.everybody": "拥有地址的任何人",
  "share.of.accounts": "此服务器的用户",
  "share.of.everybody": "任何人",
  "share.what.accounts": "拥有地址且在此有账户的人（不论角色）可以阅读消息和已呈现的文件，但不能更改任何内容。",
  "share.withEvents": "含时间线",
  "shared.by": "由 {who} 分享于 {time}，仅供阅读。",
  "shared.timeline": "到该处的时间线",
};

"""Traits of Feishu and Lark."""

from __future__ import annotations

from core.chat.port import Credential, Pace, Step, Traits

DOMAIN = "https://open.feishu.cn"
"""Lark is the same at https://open.larksuite.com: the setting `domain`."""
OPTIONS = ("domain",)
"""Keys of the settings besides the credentials."""

TRAITS = Traits(
    name="feishu",
    title="Feishu / Lark",
    credentials=(Credential("app_id", "App ID", secret=False), Credential("app_secret", "App Secret")),
    # Per message: 5 patches, 10 calls of CardKit (an update is up to two). Per chat: 5 messages, shared by all bots of
    # it. Per app and method: 50 calls, and 1000 a minute, which is less (the platform's
    # pages of these methods).
    pace=Pace(edit_seconds=0.4, group_edit_seconds=0.4, send_seconds=0.25, group_per_minute=240, per_second=15),
    answers_can_be_found=True,
    largest_file=30 << 20,
    whispers=True,
    setup=(
        Step(
            "Open https://open.feishu.cn/app (Lark: https://open.larksuite.com/app), and create a custom app "
            "(企业自建应用)."
        ),
        Step(
            "Add features → Bot (添加应用能力 → 机器人). Permissions & Scopes → Batch import (权限管理 → "
            "批量导入): paste the list of the page /docs/feishu. Version management & release (版本管理与发布): "
            "create a version, publish it."
        ),
        Step("Credentials & Basic Info (凭证与基础信息). Copy the App ID.", "app_id", r"cli_\w+"),
        Step("Copy the App Secret of the same page.", "app_secret", r"\w+"),
        Step(
            "Once the server runs: Events & callbacks (事件与回调) → persistent connection for both, with the "
            "event im.message.receive_v1 and the callback card.action.trigger. Publish another version."
        ),
    ),
)

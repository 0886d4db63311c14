"""Traits of DingTalk."""

from __future__ import annotations

from core.chat.port import Credential, Pace, Step, Traits

TRAITS = Traits(
    name="dingtalk",
    title="DingTalk",
    credentials=(
        Credential("client_id", "Client ID (AppKey)", secret=False),
        Credential("client_secret", "Client Secret (AppSecret)"),
    ),
    # Cards: 300 ms between updates. 20 messages a minute in a group, and 20 calls a second
    # of an app to an API, of which five are left to the working sign.
    pace=Pace(edit_seconds=0.5, group_edit_seconds=1.0, send_seconds=0.5, group_per_minute=20, per_second=15),
    answers_can_be_found=False,
    edits_are_free=False,
    largest_file=20 << 20,
    whispers=True,
    setup=(
        Step(
            "Open https://open-dev.dingtalk.com → Application Development → Create application (应用开发 → 创建应用)."
        ),
        Step(
            "Add capability → Bot (添加应用能力 → 机器人): Stream Mode, and publish it. Permissions (权限管理): "
            "grant qyapi_robot_sendmsg, Card.Instance.Write and Card.Streaming.Write. Then Version management "
            "and release (版本管理与发布)."
        ),
        Step("Credentials and basic information (凭证与基础信息). Copy the Client ID.", "client_id", r"\w+"),
        Step("Copy the Client Secret of the same page.", "client_secret", r"[\w-]+"),
        Step(
            "For answers that grow: on https://open-dev.dingtalk.com/fe/card create a template of the type AI "
            "card (AI 卡片) with a Markdown variable named content and streaming switched on. Publish it, "
            "connect it with the app, and copy its id.",
            "card_template_id",
            r"[\w-]+\.schema",
            optional=True,
        ),
        Step(
            "For buttons: the template 1366a1eb-bc54-4859-ac88-517c56a9acb1.schema of DingTalk's SDK needs no "
            "work. Its id, or that of yours.",
            "button_template_id",
            r"[\w-]+\.schema",
            optional=True,
        ),
    ),
)

OPTIONS = ("robot_code", "card_template_id", "button_template_id", "stop_button", "base_url", "upload_url")
"""Further keys of an account's settings."""

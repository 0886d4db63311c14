"""Providers of models that are offered to people by name: their addresses, classes, and examples."""

from __future__ import annotations

from typing import NamedTuple

CUSTOM = "custom"
NO_KEY = "not-needed"


class Provider(NamedTuple):
    """An OpenAI-compatible endpoint, or a class for another protocol. Without a `variable` it needs no key here."""

    base_url: str | None
    variable: str
    example: str
    use: str = ""


PROVIDERS = {
    "openai": Provider(None, "OPENAI_API_KEY", "gpt-5.4"),
    "deepseek": Provider(
        "https://api.deepseek.com", "DEEPSEEK_API_KEY", "deepseek-chat", "adapters.models.dialects:DeepSeek"
    ),
    "openrouter": Provider("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY", "openai/gpt-5.4"),
    "groq": Provider("https://api.groq.com/openai/v1", "GROQ_API_KEY", "openai/gpt-oss-120b"),
    "mistral": Provider("https://api.mistral.ai/v1", "MISTRAL_API_KEY", "mistral-large-latest"),
    "ollama": Provider("http://127.0.0.1:11434/v1", "", "qwen3"),
    "anthropic": Provider(None, "ANTHROPIC_API_KEY", "claude-sonnet-4-5", "langchain_anthropic:ChatAnthropic"),
    "google": Provider(None, "GOOGLE_API_KEY", "gemini-2.5-pro", "langchain_google_genai:ChatGoogleGenerativeAI"),
    "bedrock": Provider(None, "", "anthropic.claude-sonnet-4-5-20250929-v1:0", "langchain_aws:ChatBedrockConverse"),
    "azure": Provider(None, "AZURE_API_KEY", "gpt-5.4"),
    CUSTOM: Provider(None, "MODEL_API_KEY", ""),
}
ADDRESSES = {"azure": "https://NAME.openai.azure.com/openai/v1", CUSTOM: "http://localhost:8000/v1"}
"""Providers whose address is the person's own, with an example."""

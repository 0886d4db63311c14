"""Tool that shows the model an image of the sandbox."""

from __future__ import annotations

from core.tools import Result, ToolContext, tool


@tool(effect="pure")
async def view_image(ctx: ToolContext, image_path: str) -> Result:
    """Look at an image: you see it right after the result. JPEG, PNG and WebP, up to 20 MB.

    - You see it once. To compare images, look at them in one response. Others (GIF, SVG) must be converted first.

    Args:
        image_path: The absolute path of the image, in /mnt/user-data/workspace, uploads or outputs, or in the
            person's folder /mnt/project.
    """
    image = await ctx.call("sandbox", {"op": "image", "user": ctx.user, "thread": ctx.thread, "path": image_path})
    metadata = {name: image[name] for name in ("mime_type", "size", "sha256")}
    text = f"{image['path']}: {image['mime_type']}, {image['size']} bytes"
    return Result(text, update={"viewed_images": {image["path"]: metadata}})

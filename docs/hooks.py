"""Files beside docs/ that the documentation site shows: the README as first page, the changes, the two formats.

They stay where their code is. Links are written as they work in the repository, and turned here.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
ADOPTED = {
    "index.md": "README.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "journal/FORMAT.md": "journal/FORMAT.md",
    "meta_client/protocol/PROTOCOL.md": "meta_client/protocol/PROTOCOL.md",
}
_INTO_DOCS = re.compile(r"\]\((?:\.\./)*docs/")
_OUT_OF_DOCS = re.compile(r"\]\((?:\.\./)+(journal/FORMAT\.md|meta_client/protocol/PROTOCOL\.md)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adopt the files beside docs/."""
    for place, source in ADOPTED.items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Any, **others: Any) -> str:
    """Turn the links of adopted files, and those to them."""
    del others
    depth = page.file.src_uri.count("/")
    up = "](" + "../" * depth
    return _OUT_OF_DOCS.sub(up + r"\1", _INTO_DOCS.sub(up, markdown))

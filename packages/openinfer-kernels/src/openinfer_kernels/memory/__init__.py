"""Host memory in huge pages, and copies to a device for which the host does not wait."""

from openinfer_kernels.memory._huge_pages import (
    empty_in_huge_pages,
    empty_weight,
    zeros_in_huge_pages,
)
from openinfer_kernels.memory._upload import upload

__all__ = ["empty_in_huge_pages", "empty_weight", "upload", "zeros_in_huge_pages"]

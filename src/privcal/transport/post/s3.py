"""s3fs with a listing that ends, and without what it keeps of an earlier one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from s3fs import S3FileSystem

MAX_PAGES = 2000


class Bucket(S3FileSystem):
    """A bucket of S3, or of what speaks its protocol."""

    opening = {"block_size": 4 << 20, "cache_type": "none"}  # noqa: RUF012
    """How to open a file of which little is read, once."""

    retries = 2

    def __init__(self, region: str | None = None, **options: Any) -> None:
        client = {} if region is None else {"region_name": region}
        times = {"connect_timeout": 10, "read_timeout": 15, "retries": {"total_max_attempts": 2}}
        kept = {"use_listings_cache": False, "config_kwargs": times}
        super().__init__(client_kwargs=client, **kept, **options)

    def mkdir(self, path: str, *more: Any, **options: Any) -> None:
        """Make no bucket: a prefix needs nothing to be there, and a bucket is its operator's."""
        raise FileNotFoundError(f"there is no bucket for {path}")

    def names(self, path: str) -> Iterator[str]:
        """The names below a prefix, a page after the other."""
        bucket, key, _ = self.split_path(path)
        more: dict[str, str] = {}
        for _ in range(MAX_PAGES):
            page = self.call_s3(
                "list_objects_v2",
                Bucket=bucket,
                Prefix=key.rstrip("/") + "/",
                Delimiter="/",
                **more,
            )
            for entry in page.get("Contents", ()):
                yield entry["Key"]
            if not page.get("IsTruncated") or "NextContinuationToken" not in page:
                return
            more = {"ContinuationToken": page["NextContinuationToken"]}

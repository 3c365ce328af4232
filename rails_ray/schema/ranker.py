"""Which heavy ranker."""

from dataclasses import dataclass, replace

from rails_ray.paths import expanded

FORMER_MODULES = {  # where stored configs of earlier releases name our own rankers -> where they are
    "rails_ray.build.run_ranker": "rails_ray.families.rbe.run_ranker",
    **{
        f"rails_ray.relevance.rankers.{name}": f"rails_ray.reranking.rankers.{name}"
        for name in ("boosted", "cross_encoder", "molecules", "syntax_trees", "transformers_ranker")
    },
}


@dataclass(frozen=True, kw_only=True)
class RankerConfig:
    """Which heavy ranker.

    Args:
        path: Import path, MODULE:NAME, on every machine that calls it; empty for none.
        folder: What it reads, such as its weights; empty if it needs nothing.
    """

    path: str = ""
    folder: str = ""

    def __post_init__(self) -> None:
        module, colon, name = self.path.partition(":")
        object.__setattr__(self, "path", FORMER_MODULES.get(module, module) + colon + name)

    def at_absolute_folder(self) -> "RankerConfig":
        """Make paths absolute, for processes that run in folders of their own."""
        if not self.folder or "://" in self.folder:
            return self
        return replace(self, folder=str(expanded(self.folder).resolve()))

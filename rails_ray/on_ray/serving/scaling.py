"""How many replicas a shard needs: Serve's own rule, with what routers ask directly counted as well."""

from typing import Any

from ray.serve.config import AutoscalingContext

ONGOING = "ongoing"  # the statistic of a replica: direct calls that it has not answered


def by_all_calls(context: AutoscalingContext) -> tuple[float, dict[str, Any]]:
    """So many replicas that each has the target of ongoing calls; Serve applies delays and bounds."""
    config: Any = context.config
    direct = sum((context.aggregated_metrics or {}).get(ONGOING, {}).values())
    return (context.total_num_requests + direct) / config.get_target_ongoing_requests(), {}

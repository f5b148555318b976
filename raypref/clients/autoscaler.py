"""What Ray's autoscaler says of a demand that the cluster is too small for.

Ray has no public call for it. Its autoscaler (version 2: that of `ray up` and of KubeRay) answers every demand in the
state that it reports to the head, and this file alone reads that.
"""

from __future__ import annotations

from dataclasses import dataclass

import ray
from ray.util.placement_group import PlacementGroup


@dataclass(frozen=True)
class Answer:
    """Of the autoscaler, to one placement group."""

    refuses: bool
    """No node types could hold it, beside what is in use now."""
    note: str
    """What it does about it, for people."""


def answer(group: PlacementGroup) -> Answer | None:
    """What the autoscaler says of a placement group that waits; None where there is none that reports.

    Nodes that people start themselves have one, too, which has no node types to add and reports nothing.
    """
    try:
        from ray.core.generated.autoscaler_pb2 import GetClusterStatusReply
        from ray.experimental.internal_kv import internal_kv_get_gcs_client

        reply = internal_kv_get_gcs_client().get_cluster_status(timeout_s=10)
        state = GetClusterStatusReply.FromString(reply).autoscaling_state
    except (ImportError, AttributeError, TypeError, ray.exceptions.RpcError):  # of another Ray; out of reach
        return None
    if not state.autoscaler_state_version:
        return None
    # The details of a request are "ID:STRATEGY|STATE".
    refuses = any(r.details.startswith(group.id.hex()) for r in state.infeasible_gang_resource_requests)
    if refuses:
        return Answer(True, "its autoscaler cannot add what is missing now")
    coming = len(state.pending_instances) + sum(request.count for request in state.pending_instance_requests)
    if coming:
        return Answer(False, f"nodes on their way: {coming}")
    if state.failed_instance_requests:
        return Answer(False, f"the last node did not start ({state.failed_instance_requests[-1].reason})")
    return Answer(False, "no node is on its way yet")

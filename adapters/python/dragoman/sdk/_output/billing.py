"""Who pays how for a run, as far as the login in use shows. Pure."""

from collections.abc import Collection, Mapping

from dragoman.v1 import event_pb2 as pb
from msgspec import Struct


class Billing(Struct, frozen=True):
    """Who pays how, and who sends the bill. What is not known is empty."""

    type: pb.BillingType.ValueType = pb.BILLING_TYPE_UNSPECIFIED
    biller: str = ""


def key_billing(variables: Collection[str], env: Mapping[str, str], biller: str) -> Billing:
    """Return the billing of an agent that pays with an API key where one of ``variables`` holds it."""
    has_key = any(env.get(name) for name in variables)
    return Billing(pb.BILLING_TYPE_API, biller) if has_key else Billing()


def write_billing(message: pb.Result | pb.AttemptEnded, billing: Billing) -> None:
    """Write a billing into the end of an attempt, and into its price where that does not say so itself."""
    message.billing_type, message.biller = billing.type, billing.biller
    prices = [message.usage.cost] if message.usage.HasField("cost") else []
    prices += [model.cost for model in message.usage.models if model.HasField("cost")]
    for cost in prices:
        if cost.billing_type == pb.BILLING_TYPE_UNSPECIFIED:
            cost.billing_type = billing.type
            cost.biller = cost.biller or billing.biller

"""Hand manifests to a cluster of Kubernetes, by the kubeflow SDK."""

from __future__ import annotations

import json
from typing import Any

from gallery_lib.config import KubernetesConfig
from gallery_lib.errors import InputError
from gallery_lib.submit.train_job import API_VERSION
from gallery_lib.system.extras import install_command

_PLURALS = {"TrainJob": "trainjobs", "TrainingRuntime": "trainingruntimes"}
_SECONDS = 30


def _client(config: KubernetesConfig) -> Any:
    """Return the SDK's client of the cluster in the kubectl context."""
    try:
        from kubeflow.trainer import KubernetesBackendConfig, TrainerClient
    except ImportError:
        raise InputError(
            "--submit needs the kubeflow SDK, which is not installed: "
            f"{install_command('kubernetes')}. Or pipe the manifest into kubectl apply -f -.",
            parameter="submit",
        ) from None
    try:
        return TrainerClient(KubernetesBackendConfig(namespace=config.namespace))
    except Exception as error:  # the SDK has no error of its own for a missing context
        raise InputError(
            f"no cluster is at hand: {_first_line(error)}. Choose one with kubectl config "
            "use-context, or print the manifest without --submit.",
            parameter="submit",
        ) from None


def _first_line(error: Exception) -> str:
    """Return what the cluster or the SDK said, in one line."""
    body = getattr(error, "body", None)
    if isinstance(body, str | bytes):
        try:
            return str(json.loads(body)["message"])
        except (ValueError, KeyError, TypeError):
            pass
    text = " ".join(str(getattr(error, "reason", "") or error).split())
    return text.rstrip(".") or type(error).__name__


def submit(resources: list[dict[str, Any]], config: KubernetesConfig) -> None:
    """Create the resources in their order; take back those that were made before one that fails.

    Raises:
        InputError: without the SDK or a cluster, or where the cluster refuses a resource.
    """
    backend = _client(config).backend
    group, _, version = API_VERSION.partition("/")
    made: list[dict[str, Any]] = []
    for resource in resources:
        where = (group, version, backend.namespace, _PLURALS[resource["kind"]])
        try:
            backend.custom_api.create_namespaced_custom_object(
                *where, resource, _request_timeout=_SECONDS
            )
        except Exception as error:
            for earlier in made:
                backend.custom_api.delete_namespaced_custom_object(
                    *where[:3], _PLURALS[earlier["kind"]], earlier["metadata"]["name"]
                )
            raise InputError(
                f"the cluster did not take the {resource['kind']} "
                f"{resource['metadata']['name']}: {_first_line(error)}.",
                parameter="submit",
            ) from None
        made.append(resource)

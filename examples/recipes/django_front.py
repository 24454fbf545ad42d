"""A Django project in one file: the first request of a process opens its channel.

``AppConfig.ready`` would be too early: it runs in gunicorn's master where the application is
preloaded, and in every ``manage.py`` command. Needs the extra ``rifl-grpc[examples]``. Run it:
``python -m examples.recipes.django_front``.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable

import django
from django.conf import settings
from django.core.handlers.wsgi import WSGIHandler, WSGIRequest
from django.http import HttpResponse, JsonResponse
from django.urls import path

import rifl
from examples.bank.v1 import bank_pb2, bank_pb2_grpc
from examples.checking import expect
from examples.recipes.bank_server import unlucky_bank
from examples.recipes.statuses import status_of
from examples.recipes.web_process import post, serving

settings.configure(
    ROOT_URLCONF=__name__, ALLOWED_HOSTS=["127.0.0.1"], MIDDLEWARE=[f"{__name__}.CallErrors"]
)
django.setup(set_prefix=False)

_connecting = threading.Lock()


@functools.cache
def _channel() -> rifl.Channel:
    return rifl.connect(os.environ["BANK_TARGET"], session="orders")


def bank() -> bank_pb2_grpc.BankStub:
    """Return a stub on this process's one channel, which the first call opens."""
    with _connecting:
        return bank_pb2_grpc.BankStub(_channel())


class CallErrors:
    """A middleware that says whether the customer is to try again."""

    def __init__(self, get_response: Callable[[WSGIRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: WSGIRequest) -> HttpResponse:
        """Pass the request on."""
        return self._get_response(request)

    def process_exception(self, request: WSGIRequest, error: Exception) -> HttpResponse | None:
        """Answer for a view that raised."""
        if not isinstance(error, rifl.CallError):
            return None
        status, text = status_of(error)
        return JsonResponse({"error": text}, status=status)


def pay(request: WSGIRequest, order: int, account: str = "alice") -> JsonResponse:
    """Pay an order once: its number is the key of every request, from any user."""
    payment = bank_pb2.DepositRequest(reference=f"order {order}", account=account, cents=500)
    receipt = bank().Deposit(payment, timeout=10, metadata=[rifl.key(f"order {order}")])
    return JsonResponse({"entry": receipt.entry})


urlpatterns = [
    path("orders/<int:order>/pay", pay),
    path("orders/<int:order>/pay/<account>", pay),
]
application = WSGIHandler()


def main() -> None:
    """Pay two orders, one of them twice; each is paid once."""
    gunicorn = ("gunicorn", "--bind", "fd://{fd}", "--log-level", "warning")
    workers = ("--preload", "--workers", "2", "--threads", "2")
    with unlucky_bank() as served:
        command = (*gunicorn, *workers, "examples.recipes.django_front:application")
        with serving(*command, environment=served.environment()) as url:
            paid = post(f"{url}/orders/7/pay")
            expect("answer over a path that broke", paid, (200, {"entry": 1}))
            expect("answer to a second click", post(f"{url}/orders/7/pay"), paid)
            expect("answer for another order", post(f"{url}/orders/8/pay"), (200, {"entry": 2}))
            other = post(f"{url}/orders/7/pay/bob")
            expect("status of another payment for an order", other[0], 422)
            unknown = post(f"{url}/orders/9/pay/nobody")
            expect("status of an unknown account", unknown[0], 409)
        expect("times the handler ran", served.bank.runs, 2)
        expect("balance", served.ledger.balance("alice"), 1000)


if __name__ == "__main__":
    main()

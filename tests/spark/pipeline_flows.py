"""Flows of a Declarative Pipeline into both sinks; ``piping`` copies this file to the pipeline.

FLOWS has the sinks as JSON: the ``format`` and ``options`` of each, and its ``flows``, the input of
each by its name.
"""

from __future__ import annotations

import json
import os
from typing import Any

from pyspark import pipelines
from pyspark.sql import SparkSession

import rifl.spark
import sharedlog.spark

_COLUMNS = "reference string, account string, cents bigint"


def _append(sink: str, name: str, directory: str, form: str) -> None:
    @pipelines.append_flow(target=sink, name=name)
    def rows() -> Any:
        read = SparkSession.active().readStream.schema(_COLUMNS).option("maxFilesPerTrigger", "1")
        found = read.json(directory)
        if form == "rifl":
            return found
        return found.selectExpr("reference as value")


rifl.spark.register(SparkSession.active())
sharedlog.spark.register(SparkSession.active())
for _sink, _made in json.loads(os.environ["FLOWS"]).items():
    pipelines.create_sink(_sink, _made["format"], _made["options"])
    for _name, _directory in _made["flows"].items():
        _append(_sink, _name, _directory, _made["format"])

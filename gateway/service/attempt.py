"""One attempt: from the checks to the stream, until something ends it. Every failure leaves by an exception.

checks -> producer (fences an earlier gateway) -> position -> slot -> epoch -> stream
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from importlib.metadata import version as package_version
from typing import NoReturn

import asyncpg
import structlog

from gateway.events.logical_message import LogicalMessageEncoder
from gateway.events.marker import Marker
from gateway.kafka.delivery import Delivery, Frames
from gateway.kafka.outlet import RECORD_OVERHEAD_BYTES, BatchWriter
from gateway.kafka.position import Position, read_positions
from gateway.kafka.producer import Producer
from gateway.kafka.topics import Topics
from gateway.lsn import Lsn
from gateway.operate import metrics
from gateway.operate.errors import Retry
from gateway.operate.failpoints import failpoint
from gateway.operate.http import Health
from gateway.operate.settings import Settings
from gateway.replication.connection import ReplicationStream, connect_replication, connect_sql
from gateway.replication.feedback import StandbyStatus
from gateway.replication.options import pgoutput_options, protocol_version
from gateway.service.announcer import Announcer
from gateway.service.pump import Pump
from gateway.service.start import Start, decide_start
from gateway.transactions.machine import TransactionMachine
from gateway.transactions.transaction import MessageTopic
from schemas.framing import frame
from schemas.names import POSITION_TOPIC, message_topic, topic_name, transaction_topic, value_subject
from schemas.records import LOGICAL_MESSAGE, POSITION, TRANSACTION_MARKER
from schemas.registry import RegistryClient

log = structlog.get_logger()

DRAIN_TIMEOUT_S = 10.0
LEAVE_TIMEOUT_S = 3.0

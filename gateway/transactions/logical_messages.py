"""The part of the state machine for logical messages, and for messages that are too large to be
held."""

from __future__ import annotations

from typing import Final

from librt.strings import read_i32_be

from gateway.names import HEARTBEAT_PREFIX
from gateway.pgoutput.letters import ROW_MESSAGES
from gateway.pgoutput.logical_message import Message, MessageHead, read_message_head
from gateway.transactions.ordinary import OrdinaryTransactions
from gateway.transactions.transaction import OWN_PREFIXES, ExcludedMessage, MessageSelection, Transaction

_UNSIGNED: Final = 0xFFFFFFFF

_NAMED_PREFIX: Final = 100
"""The number of characters that are enough to recognize a prefix, which may be as long as the
message."""


class LogicalMessages(OrdinaryTransactions):
    """Receive logical messages, besides all that OrdinaryTransactions receives."""

    _messages: MessageSelection  # set by TransactionMachine

    def _message(self, message: Message, change_lsn: int) -> None:
        transaction = self._transaction_of(message)
        if message.prefix == HEARTBEAT_PREFIX and transaction is not None:
            transaction.is_heartbeat = True
        if transaction is not None and transaction.skipped:
            return
        if not self._messages.takes(message.prefix):
            if self._watch is not None and transaction is not None and message.prefix in OWN_PREFIXES:
                # Only an ordinary COMMIT carries out what has arrived.
                has_no_commit = self.in_stream or transaction.prepare is not None
                arrived = self._watch.message(message.prefix, message.content, transaction.xid, has_no_commit)
                self.arrived = self.arrived or arrived
            return
        size = self.writer.message(transaction, message, change_lsn, self.resume_lsn)
        if size:
            self._leave_out(message, transaction, size)
        elif transaction is not None:
            self._begin_records(transaction)
            transaction.has_messages = True

    def _transaction_of(self, message: Message | MessageHead) -> Transaction | None:
        """Return the transaction that a logical message belongs to. For a message outside
        transactions, return None, and let replication start again after it."""
        if not message.transactional:
            self._demand_no_transaction("a message outside transactions")
            self._resume_after(message.message_lsn)
            return None
        transaction = self._demand_transaction("Message")
        if message.xid is not None and message.xid != transaction.context_subxid:
            self._enter(transaction, message.xid)
        return transaction

    def _leave_out(self, message: Message | MessageHead, transaction: Transaction | None, message_bytes: int) -> None:
        """Leave out a message that is too large for Kafka. Any user can emit such a message, so it
        must not stop replication."""
        prefix = message.prefix[:_NAMED_PREFIX]
        xid = 0
        if transaction is not None:
            xid = transaction.xid
            self._begin_records(transaction)
            transaction.has_messages = True
            self.writer.exclude_message(transaction, prefix)
        self._messages.leave_out(ExcludedMessage(xid, message.message_lsn, prefix, message_bytes))

    # -- what is too large to be held

    def drained(self, data: bytes, position: int, end: int, message_bytes: int) -> None:
        """Process the first bytes of a message that is far too large for Kafka; `message_bytes` is
        its whole size. A logical message is left out; for a row, the error of its sink is
        raised."""
        if data[position] in ROW_MESSAGES:
            oid_at = position + (5 if self.in_stream else 1)
            relation_oid: int = read_i32_be(data, oid_at)
            relation_oid &= _UNSIGNED
            self._refuse_drained(relation_oid, message_bytes)
            return
        head = read_message_head(data[position:end], self.in_stream)
        transaction = self._transaction_of(head)
        if transaction is not None and transaction.skipped:
            return
        if self._messages.takes(head.prefix):
            self._leave_out(head, transaction, message_bytes)

    def _refuse_drained(self, relation_oid: int, message_bytes: int) -> None:
        """Raise StopForOperator, unless the row is left out."""
        if not self._leaves_out(self._demand_transaction("a row message"), relation_oid):
            version = self._active.get(relation_oid) or self._activate(relation_oid)
            raise version.too_large(f"comes in a message of {message_bytes} bytes", message_bytes)

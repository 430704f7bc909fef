"""The project's own models."""

from __future__ import annotations

from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    """The project's own metadata."""


class Order(Base):
    """What was sold."""

    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    amount: Mapped[int]


class Report(Base):
    """What a night came to."""

    __tablename__ = "reports"

    id: Mapped[int] = mapped_column(primary_key=True)
    last_order: Mapped[int]
    total: Mapped[int]

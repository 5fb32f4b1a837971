"""Certificates of finished runs, which a reviewer can make again."""

from hpcsgd.studies.verify.certificate import Certificate, certify

__all__ = ["Certificate", "certify"]

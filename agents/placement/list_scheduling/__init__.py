"""What HEFT, m-ETF and m-SCT share: ranks, calendars of devices and ports, repairs."""

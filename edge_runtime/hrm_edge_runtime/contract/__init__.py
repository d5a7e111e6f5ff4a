"""What every layer of the runtime shares: the bundle on disk, the halting rule and logs."""

//! Ethernet, IP and TCP headers: which flow a frame belongs to, and headers for what we send.

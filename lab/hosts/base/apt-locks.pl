#!/usr/bin/perl
# Holds the locks of apt and dpkg for so many seconds:  apt-locks.pl SECONDS
# They are fcntl locks, which flock(1) cannot take. perl-base is on every Debian; python3 is not.
use strict;
use warnings;
use Fcntl qw(F_SETLK F_WRLCK SEEK_SET);

my $seconds = shift or die "usage: apt-locks.pl SECONDS\n";
my @held;
for my $path ('/var/lib/apt/lists/lock', '/var/lib/dpkg/lock-frontend', '/var/lib/dpkg/lock') {
    open(my $file, '+>>', $path) or die "$path: $!\n";
    # struct flock of 64-bit Linux: type, whence, start, length, pid.
    my $whole_file = pack('s s x4 q q i x4', F_WRLCK, SEEK_SET, 0, 0, 0);
    fcntl($file, F_SETLK, $whole_file) or die "$path: $!\n";
    push @held, $file;
}
sleep $seconds;

;;; qwen-companion-disk.el --- Read, watch and check files on disk  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Reads names, stamps and texts of files on disk, watches files for writes,
;; and waits for a CLI to write an accepted proposal.  Such writes are checked
;; by content: messages about a file always agree with its bytes.

;;; Code:

(require 'cl-lib)
(require 'filenotify)
(require 'seq)
(require 'subr-x)
(require 'qwen-companion-places)
(require 'qwen-companion-backend)
(require 'qwen-companion-buffers)
(require 'qwen-companion-timers)

(defconst qwen-companion-disk--patience 5
  "Time limit in seconds for an expected write.")

(defconst qwen-companion-disk--time-resolution 0.03
  "Coarsest step of a file system's clock, in seconds.
A file that is read sooner after a write may change again without a new
time.")

(cl-defstruct (qwen-companion-disk--write (:copier nil))
  "An expected write.
PATH is the file.  TEXTS are its possible contents afterwards, the
accepted text last; FORESEEN are those that include the writes expected
before this one.  OPTIONAL is non-nil if the write may not happen, as the
user may have answered no.  STAMP is the stamp of the file before, REPORTED
its stamp at the last reported change.  CHECKED is the result of the last
check, (STAMP . TEXT): TEXT is the member of TEXTS in the file, or nil.
DONE is a function for the end of the wait, WATCH the watch of the file,
and TIMER ends the wait (nil while the CLI cannot write yet)."
  path texts foreseen optional stamp reported checked done watch timer)

(defvar qwen-companion-disk-written-functions nil
  "Abnormal hook run after an expected write.
Each function gets the file's name.")

(defvar qwen-companion-disk-expecting-functions nil
  "Abnormal hook run when a write begins or ceases to be expected.
Each function gets the file's name; see `qwen-companion-disk-expected-p'.")

(defvar qwen-companion-disk-catch-up-functions nil
  "Abnormal hook that brings the buffers visiting a file up to date.
Each function gets the file's name, and returns nil while the buffers
still differ from the disk.")

(defvar qwen-companion-disk--writes nil
  "The writes that are expected, newest first.")

;;; Files

(defun qwen-companion-disk-text (buffer line-end)
  "Return the whole text of BUFFER exactly as in a file.
LINE-END ends each line there: \"\\n\" or \"\\r\\n\"."
  (qwen-companion-disk-set-line-ends
   (qwen-companion-buffers-text buffer) line-end))

(defun qwen-companion-disk-set-line-ends (text line-end)
  "Return TEXT with LINE-END for each LF: \"\\n\" or \"\\r\\n\"."
  (cond
   ((equal line-end "\n") text)
   ((unencodable-char-position 0 (length text) 'utf-8 nil text)
    (string-replace "\n" line-end text))
   ;; For Unicode text this gives the same result in half the time.
   (t (let ((inhibit-eol-conversion nil))
        (decode-coding-string (encode-coding-string text 'utf-8-dos t)
                              'utf-8-unix t)))))

(defun qwen-companion-disk-end-line (text)
  "Return TEXT with a line end after its last line."
  (cond ((or (string-empty-p text) (string-suffix-p "\n" text)) text)
        ((string-search "\r\n" text) (concat text "\r\n"))
        (t (concat text "\n"))))

;; Searching 20 MB for one character takes 2 ms, for two 25 to 90.
(defun qwen-companion-disk-unix-text (text)
  "Return TEXT with LF for each CR LF."
  (if (string-search "\r" text)
      (string-replace "\r\n" "\n" text)
    text))

(defun qwen-companion-disk-attributes (path)
  "Return the attributes of PATH, or nil if nothing is there.
Return nil, too, if a directory above it is a link to itself."
  (ignore-error file-error
    (file-attributes path)))

(defun qwen-companion-disk--attributes (path)
  "Return the attributes of the file PATH, links followed, or nil."
  (let ((attributes (qwen-companion-disk-attributes path)))
    ;; Checking for links first would double the time.
    (if (stringp (file-attribute-type attributes))
        ;; A link may lead to itself.
        (when-let* ((file (ignore-errors (file-chase-links path))))
          (file-attributes file))
      attributes)))

(defun qwen-companion-disk-regular-p (path)
  "Return non-nil when PATH is a regular file, or a link to one.
`file-regular-p' does not find files whose names are not UTF-8."
  (when-let* ((attributes (qwen-companion-disk--attributes path)))
    (string-prefix-p "-" (file-attribute-modes attributes))))

(defun qwen-companion-disk-stamp (path)
  "Return a stamp of the file PATH, different after each write.
Return nil when the file does not exist."
  (let ((file-name-handler-alist nil))
    (when-let* ((attributes (qwen-companion-disk--attributes path)))
      (list (file-attribute-modification-time attributes)
            (file-attribute-size attributes)
            (file-attribute-inode-number attributes)
            ;; The only time that programs cannot set.
            (file-attribute-status-change-time attributes)))))

;; Finding the real name of a file takes 0.15 ms: a few system calls for each
;; directory in it.

(defvar qwen-companion-disk-truename-cache nil
  "Cache of real directory names, bound to (nil) around work on many files.
Its car has the last two directories, newest first, each (DIRECTORY
TRUENAME . TIME); TIME is in seconds since the epoch.")

(defconst qwen-companion-disk--truename-seconds 0.01
  "Seconds for which a cached real name of a directory is used.")

(defun qwen-companion-disk-true-directory (directory)
  "Return the real name of DIRECTORY; both end in a slash.
Use the cache `qwen-companion-disk-truename-cache' where it is bound."
  (let* ((recent qwen-companion-disk-truename-cache)
         (entry (assoc directory (car recent)))
         (now (float-time)))
    (unless (and entry (<= 0 (- now (cddr entry)) qwen-companion-disk--truename-seconds))
      (setq entry (cons directory (cons (file-truename directory) now))))
    (when recent
      (setcar recent (cons entry (seq-take (assoc-delete-all directory (car recent)) 1))))
    (cadr entry)))

(defun qwen-companion-disk--truename (path)
  "Return the real name of the file PATH, which is absolute."
  (or (and (file-symlink-p path)
           ;; A link that leads to itself is its own name.
           (ignore-errors (file-truename path)))
      (concat (qwen-companion-disk-true-directory (file-name-directory path))
              (file-name-nondirectory path))))

(defun qwen-companion-disk-buffers (path)
  "Return the buffers that visit the file PATH, by this or another name."
  (let ((truename (abbreviate-file-name (qwen-companion-disk--truename path)))
        (number (qwen-companion-disk-file-number path)))
    (cl-remove-if-not
     (lambda (buffer)
       (and (buffer-file-name buffer)
            (or (equal truename (buffer-local-value 'buffer-file-truename buffer))
                (and number
                     (equal number (buffer-local-value 'buffer-file-number buffer))
                     ;; The inode number of a deleted file is used again.
                     (equal number (qwen-companion-disk-file-number
                                    (buffer-file-name buffer)))))))
     (buffer-list))))

(defun qwen-companion-disk-buffer (path)
  "Return a buffer that visits the file PATH, by this name if possible, or nil."
  (or (get-file-buffer path)
      (car (qwen-companion-disk-buffers path))))

(defun qwen-companion-disk-file-number (path)
  "Return inode and device of the file PATH, as in `buffer-file-number'."
  (nthcdr 10 (qwen-companion-disk--attributes path)))

(defun qwen-companion-disk-fresh-p (time)
  "Return non-nil when TIME, of a modification, is very recent.
The file may then change again without a new time."
  (< (abs (float-time (time-since time))) qwen-companion-disk--time-resolution))

(defun qwen-companion-disk-same-text-p (buffer)
  "Return non-nil when the current buffer, widened, and BUFFER have one text."
  (let ((case-fold-search nil))
    (save-restriction
      (widen)
      (and (= (buffer-size) (buffer-size buffer))
           (zerop (compare-buffer-substrings buffer nil nil nil nil nil))))))

(defun qwen-companion-disk-digest (path)
  "Return the SHA-256 of the bytes of the file PATH, nil when there is none."
  (when-let* ((bytes (qwen-companion-disk-bytes path)))
    (secure-hash 'sha256 bytes)))

(defun qwen-companion-disk-visiting (path &optional predicate)
  "Return a buffer that visits the file PATH, or nil.
If PREDICATE is given, it must return non-nil for the buffer.  For a
remote file, or its local copy, compare only names: TRAMP would have to
connect otherwise."
  (let ((name (qwen-companion-places-name path)))
    (cl-find-if (or predicate #'always)
                (delq nil (cons (qwen-companion-places-visiting name)
                                (and (equal name path) (not (qwen-companion-places-remote-p path))
                                     (qwen-companion-disk-buffers (expand-file-name path))))))))

(defvar-local qwen-companion-disk-read-only-view nil
  "Non-nil when a view has made the current buffer read-only, for its keys.")

(defun qwen-companion-disk-visit (path)
  "Return a buffer that visits the file PATH and can be edited.
Signal an error when the user may not write that file.  Its directory need
not exist: Emacs offers to create it when saving."
  (let ((buffer (or (qwen-companion-disk-visiting path)
                    (find-file-noselect (qwen-companion-places-name path)))))
    (with-current-buffer buffer
      (unless (file-directory-p default-directory)
        (setq buffer-read-only nil))
      (unless qwen-companion-disk-read-only-view
        (barf-if-buffer-read-only)))
    buffer))

(defun qwen-companion-disk-save ()
  "Save the current buffer; its last line may lack a newline."
  (let ((require-final-newline nil)
        (mode-require-final-newline nil)
        (save-silently t))
    (basic-save-buffer)))

(defun qwen-companion-disk-insert (path &optional coding exactly)
  "Insert the text of the file PATH at point, as Emacs would read it.
With CODING nil, detect the coding.  With EXACTLY non-nil, do not convert
line ends, and do not treat a NUL as a sign of a binary file.  Return the
coding system, or nil when the file is missing or empty.  Run no format
conversion, since the text is untrusted."
  (qwen-companion-disk--insert path coding exactly exactly))

(defun qwen-companion-disk-insert-unified (path &optional coding)
  "Insert the text of the file PATH into the current buffer, which is empty.
If all lines end in CR LF, convert these to LF; otherwise leave line ends
alone.  Do not treat a NUL as a sign of a binary file.  With CODING nil,
detect the coding.  Return (CODING . LINE-END): the coding system, or nil
when the file is missing or empty, and the file's line end, see
`qwen-companion-disk-line-end'."
  ;; In 20 MB, examining each line end takes 0.2 s, and converting each
  ;; afterwards 0.4 s; Emacs needs 20 ms while it reads the file.
  (let* ((buffer-undo-list t)
         (size (qwen-companion-disk--size path))
         (used (qwen-companion-disk--insert path coding nil t)))
    (if (and (eql 1 (coding-system-eol-type used))
             (equal size (qwen-companion-disk--size path))
             (eql (qwen-companion-disk--returns-removed used size)
                  (qwen-companion-disk--newlines)))
        (cons used "\r\n")
      ;; It has been converted to LF, from CR LF or from CR.
      (when (memql (coding-system-eol-type used) '(1 2))
        (erase-buffer)
        (setq used (qwen-companion-disk--insert path coding t t)))
      (let ((line-end (qwen-companion-disk-line-end)))
        (when (equal line-end "\r\n")
          (qwen-companion-disk-convert-line-ends "\n"))
        (cons used line-end)))))

(defun qwen-companion-disk--insert (path coding exactly no-binary)
  "Insert the text of PATH in CODING as `qwen-companion-disk-insert' does.
With EXACTLY non-nil, do not convert line ends; with NO-BINARY non-nil, do
not treat a NUL as a sign of a binary file.  Return the coding system."
  (let ((inhibit-eol-conversion exactly)
        (inhibit-null-byte-detection no-binary)
        (file-name-handler-alist nil)
        (format-alist nil)
        (after-insert-file-functions nil)
        (last-coding-system-used nil)
        (coding-system-for-read coding))
    (when (file-exists-p path)
      (insert-file-contents path)
      last-coding-system-used)))

(defun qwen-companion-disk--returns-removed (coding size)
  "Return the number of CR characters removed by reading a file.
The file has SIZE bytes; the current buffer contains it, read as CODING.
Return nil if the sizes are not conclusive."
  (when (memq (coding-system-type coding) '(utf-8 undecided))
    (- size
       (1- (position-bytes (point-max)))
       (if (eq 'utf-8-with-signature (coding-system-base coding)) 3 0))))

(defun qwen-companion-disk--newlines ()
  "Return the number of newlines in the current buffer."
  ;; With that cache Emacs records each newline, which takes ten times as long.
  (let ((cache-long-scans nil))
    (1- (line-number-at-pos (point-max) t))))

(defun qwen-companion-disk-line-end ()
  "Return the line end of the current buffer: \"\\n\" or \"\\r\\n\".
Return `mixed' if lines end differently, nil if no line has an end.  Emacs
itself examines only the first three lines of a file."
  (let ((ends (qwen-companion-disk--newlines)))
    (save-excursion
      (goto-char (point-min))
      ;; That takes a fifth of the time of a search.  A string would take half
      ;; of that, but collecting garbage afterwards takes longer.
      (skip-chars-forward "^\r")
      (cond
       ((zerop ends) nil)
       ((eobp) "\n")
       (t
        (let ((returns 0)
              ;; That halves the time of the search, 0.1 s in 20 MB.
              (case-fold-search nil))
          (while (search-forward "\r\n" nil t)
            (cl-incf returns))
          (cond ((zerop returns) "\n")
                ((= ends returns) "\r\n")
                (t 'mixed))))))))

(defun qwen-companion-disk-convert-line-ends (line-end)
  "Convert all line ends of the current buffer to LINE-END, \"\\n\" or \"\\r\\n\".
All lines must have the other one.  This cannot be undone, and neither can
earlier changes."
  (let ((modified (buffer-modified-p))
        (inhibit-modification-hooks t)
        (inhibit-read-only t)
        (undo buffer-undo-list))
    (buffer-disable-undo)
    (save-excursion
      (goto-char (point-min))
      (if (equal line-end "\n")
          (while (search-forward "\r\n" nil t)
            (delete-region (- (point) 2) (1- (point))))
        (while (search-forward "\n" nil t)
          (backward-char)
          (insert "\r")
          (forward-char))))
    (unless (eq undo t)
      (buffer-enable-undo))
    (restore-buffer-modified-p modified)))

(defun qwen-companion-disk-named-coding (path)
  "Return the coding system that the user has chosen for the file PATH, or nil.
It is that of the buffer visiting PATH, without line ends: these are
detected, so that both texts of a comparison are read alike."
  (when-let* ((buffer (qwen-companion-disk-visiting path))
              (coding (car (buffer-local-value
                            'buffer-file-coding-system-explicit buffer))))
    (coding-system-change-eol-conversion coding nil)))

(defun qwen-companion-disk-fitting-coding (coding)
  "Return a coding system to save the current buffer; its file is in CODING.
Fill in what CODING leaves undecided from the buffer's coding system; a
nil CODING, that of a file without evidence, leaves everything undecided."
  (let ((end (and coding (coding-system-eol-type coding)))
        (fitting (if (memq (and coding (coding-system-type coding)) '(nil undecided))
                     buffer-file-coding-system
                   coding)))
    (if (and fitting (integerp end))
        (coding-system-change-eol-conversion fitting end)
      fitting)))

(defun qwen-companion-disk-adopt-coding (coding)
  "Save the current buffer in its file's CODING from now on.
Undoing the last change, which inserted the file's text, restores the
old coding system."
  (let ((new (qwen-companion-disk-fitting-coding coding)))
    (unless (eq new buffer-file-coding-system)
      (when (and (consp buffer-undo-list) (null (car buffer-undo-list)))
        (pop buffer-undo-list))
      (qwen-companion-disk--set-coding new)
      (undo-boundary))))

(defun qwen-companion-disk--set-coding (coding)
  "Save the current buffer in CODING from now on; that can be undone."
  (when (listp buffer-undo-list)
    (push (list 'apply #'qwen-companion-disk--set-coding
                buffer-file-coding-system)
          buffer-undo-list))
  (setq buffer-file-coding-system coding))

(defun qwen-companion-disk-holds-p (path text)
  "Return non-nil when TEXT, in any encoding, is in the file PATH.
A CLI that changes a file may keep its encoding, its byte order mark and
its line ends, which TEXT may lack.  Return nil if the file is unreadable."
  (when-let* ((text (string-remove-prefix "\ufeff" text))
              (plain (qwen-companion-disk-unix-text text))
              (bytes (and (qwen-companion-disk-regular-p path)
                          (qwen-companion-disk--size-fits-p path text plain)
                          (ignore-error file-error
                            (qwen-companion-disk-bytes path)))))
    (let ((forms (list (cons plain 'unix) (cons plain 'dos))))
      (unless (= (length text) (length plain))
        (push (cons text 'unix) forms))
      (cl-loop for coding in (qwen-companion-disk--codings bytes text)
               thereis
               (cl-loop for (text . line-end) in forms
                        thereis (qwen-companion-disk--encoded-p
                                 text coding line-end bytes))))))

(defun qwen-companion-disk--size-fits-p (path text plain)
  "Return nil when the size of the file PATH rules out TEXT as its contents.
PLAIN is TEXT with LF line ends.  This avoids reading a long file."
  (let* ((size (or (qwen-companion-disk--size path) 0))
         ;; One byte for each character and three for a mark, or two for each
         ;; and for a mark.
         (fits-p (lambda (characters)
                   (memql size (list characters (+ 3 characters)
                                     (+ 2 (* 2 characters)))))))
    (cond
     ((< (length plain) (string-bytes plain)) (>= size (length plain)))
     ((<= size (length plain)) (= size (length plain)))
     ((or (funcall fits-p (length plain))
          (funcall fits-p (length text))))
     (t (funcall fits-p (+ (length plain)
                           (qwen-companion-disk--count-newlines plain)))))))

(defun qwen-companion-disk--count-newlines (text)
  "Return the number of newlines in TEXT."
  (with-temp-buffer
    (insert text)
    (qwen-companion-disk--newlines)))

(defun qwen-companion-disk--size (path)
  "Return the size of the file PATH in bytes, nil when it is not there."
  (let ((file-name-handler-alist nil))
    (file-attribute-size (qwen-companion-disk--attributes path))))

(defun qwen-companion-disk-bytes (path)
  "Return the bytes of the file PATH, a unibyte string, nil when there is none."
  (let ((file-name-handler-alist nil))
    (when (qwen-companion-disk-regular-p path)
      (with-temp-buffer
        (set-buffer-multibyte nil)
        (insert-file-contents-literally path)
        (buffer-string)))))

(defun qwen-companion-disk-last-bytes (path count)
  "Return the last COUNT bytes of the file PATH, a unibyte string.
Return nil when it has fewer, or cannot be read."
  (let ((file-name-handler-alist nil)
        (size (or (qwen-companion-disk--size path) 0)))
    (when (>= size count)
      (with-temp-buffer
        (set-buffer-multibyte nil)
        (ignore-error file-error
          (insert-file-contents-literally path nil (- size count) size)
          (buffer-string))))))

(defun qwen-companion-disk--encoded-p (text coding line-end bytes)
  "Return non-nil if BYTES are TEXT in CODING.
LINE-END is the kind of its line ends: `unix' or `dos'."
  (let ((coding (coding-system-change-eol-conversion coding line-end))
        (inhibit-eol-conversion nil))
    (and
     ;; Most differ early or in size, and encoding a long text takes long.
     (string-prefix-p
      (encode-coding-string (substring text 0 (min 1000 (length text))) coding)
      bytes)
     (cond
      ((eq coding 'utf-8-unix)
       (and (= (string-bytes text) (length bytes))
            (string= bytes (encode-coding-string text coding t))))
      ;; The same result as below, in a quarter of the time.
      ((eq coding 'utf-8-dos)
       (let ((encoded (encode-coding-string text 'utf-8-unix t)))
         (and (= (length bytes)
                 (+ (length encoded) (qwen-companion-disk--count-newlines text)))
              (string= (decode-coding-string bytes 'raw-text-dos) encoded))))
      (t (string= bytes (encode-coding-string text coding t)))))))

(defun qwen-companion-disk--codings (bytes text)
  "Return the coding systems that may decode BYTES as TEXT.
A byte order mark decides.  Otherwise return UTF-8 and the coding systems
that encode the first non-ASCII character of TEXT as the first non-ASCII
bytes or escape sequence of BYTES."
  (cond
   ((string-prefix-p "\xef\xbb\xbf" bytes) '(utf-8-with-signature))
   ((string-prefix-p "\xff\xfe" bytes) '(utf-16le-with-signature))
   ((string-prefix-p "\xfe\xff" bytes) '(utf-16be-with-signature))
   (t
    (cons
     'utf-8
     ;; A fast check for non-ASCII characters, even in a long text.
     (when-let* (((< (length text) (string-bytes text)))
                 (byte (string-match-p "[\e\x80-\xff]" bytes))
                 ((string-match "[[:nonascii:]]\\{1,8\\}" text))
                 (excerpt (match-string 0 text)))
       (cl-remove-if-not
        (lambda (coding)
          (let ((encoded (encode-coding-string excerpt coding)))
            (eq t (compare-strings encoded nil nil bytes byte
                                   (min (length bytes)
                                        (+ byte (length encoded)))))))
        ;; UTF-8 has other names, and these types are equivalent to it.
        (cl-remove-if (lambda (coding)
                        (memq (coding-system-type coding)
                              '(utf-8 raw-text undecided)))
                      (find-coding-systems-string excerpt))))))))

;;; Watching

;; Events are only recorded, as there may be thousands.  Once no more arrive,
;; the watches of all directories with events are notified.  A directory that
;; cannot be watched, or has too many events, is polled instead.

(defconst qwen-companion-disk-quiet 0.05
  "Seconds without an event after which watches are notified.")

(defconst qwen-companion-disk-quiet-limit 0.5
  "Seconds after the first event after which watches are notified anyway.")

(defconst qwen-companion-disk--burst 150
  "Most events of a directory before it is polled.
Processing more, as of a branch switch, costs more than polling the files.")

(defconst qwen-companion-disk-idle-writer 1.5
  "Seconds without a write after which a file counts as completely written.")

(defconst qwen-companion-disk--poll-intervals '(0.5 . 5)
  "Seconds between two polls of a directory that is not watched.
\(BURST . NONE): while it has too many events, and if it cannot be
watched.")

(cl-defstruct (qwen-companion-disk--directory (:copier nil))
  "A directory with watched files.
NAME is its name with a final slash, WATCHES the watches of its files.
DESCRIPTOR is its file notification, nil while the directory is polled by
TIMER; UNAVAILABLE is non-nil when it cannot be watched at all.  WRITERS is
an inotify descriptor for opening and closing files, which filenotify does
not report.  EVENTS counts events since the last notification."
  name watches descriptor unavailable writers timer (events 0))

(cl-defstruct (qwen-companion-disk-watch
               (:constructor qwen-companion-disk--make-watch)
               (:copier nil))
  "A watch of one file, made by `qwen-companion-disk-watch'.
FILE is its true name, PARENTS are the directories to watch, whether or not
they exist, and DIRECTORIES the existing ones watched instead.
NOTIFY and EVENT are functions."
  file parents directories notify event)

(defvar qwen-companion-disk--directories (make-hash-table :test #'equal)
  "The watched directories: name to `qwen-companion-disk--directory'.")
(defvar qwen-companion-disk--watches (make-hash-table :test #'equal)
  "The watches: true name of the file to list of watches.")
(defvar qwen-companion-disk--open-files (make-hash-table :test #'equal)
  "The watched files open for writing: name to time of the last change.")
(defvar qwen-companion-disk--pending nil
  "The directories with events whose watches have not been notified.")
(defvar qwen-companion-disk--pending-times nil
  "The times of the first and the last of these events: (FIRST . LAST).")
(defvar qwen-companion-disk--renames nil
  "The files that were renamed: alist (OLD . NEW).")
(defvar qwen-companion-disk--moved nil
  "The watched file that inotify reported as moved, (COOKIE . FILE), or nil.")
(defvar qwen-companion-disk--events-timer nil
  "Timer that processes the events, nil when there are none.")

(defun qwen-companion-disk-watch (path notify &optional event)
  "Watch the file PATH and return a `qwen-companion-disk-watch'.
Call NOTIFY without arguments when the file may have been written: once for
many events, including those of other files in its directory.  Call the
function EVENT, if non-nil, without arguments at each event of the file
itself.  The file and its directory need not exist.  End the watch with
`qwen-companion-disk-unwatch'."
  (let* ((file-name-handler-alist nil)
         (file (file-truename path))
         (watch (qwen-companion-disk--make-watch
                 :file file
                 :parents (delete-dups
                           (list (file-name-directory file)
                                 (file-truename (file-name-directory path))))
                 :notify notify :event event)))
    (push watch (gethash file qwen-companion-disk--watches))
    (qwen-companion-disk--watch-directories watch)
    watch))

(defun qwen-companion-disk-unwatch (watch)
  "End WATCH, made by `qwen-companion-disk-watch'."
  (let ((file (qwen-companion-disk-watch-file watch)))
    (if-let* ((others (remq watch (gethash file qwen-companion-disk--watches))))
        (puthash file others qwen-companion-disk--watches)
      (remhash file qwen-companion-disk--watches))
    (qwen-companion-disk--leave-directories watch)
    (when (hash-table-empty-p qwen-companion-disk--watches)
      (qwen-companion-disk--forget-events))))

(defun qwen-companion-disk-watch-available-p (watch)
  "Return non-nil when the directories of WATCH can be watched."
  (cl-notany (lambda (name)
               (qwen-companion-disk--directory-unavailable
                (gethash name qwen-companion-disk--directories)))
             (qwen-companion-disk-watch-directories watch)))

(defun qwen-companion-disk-open-p (watch)
  "Return non-nil if a program still has the file of WATCH open after writing it.
This needs inotify."
  (gethash (qwen-companion-disk-watch-file watch) qwen-companion-disk--open-files))

(defun qwen-companion-disk-being-written-p (watch)
  "Return non-nil while a program is writing the file of WATCH.
The program stops writing when it closes the file or has not written for a
while.  This needs inotify."
  (when-let* ((time (qwen-companion-disk-open-p watch)))
    ;; The clock may have been set back since.
    (< (abs (- (float-time) time)) qwen-companion-disk-idle-writer)))

(defun qwen-companion-disk-new-name (watch)
  "Return the new name of the file of WATCH, nil unless it was renamed."
  (alist-get (qwen-companion-disk-watch-file watch)
             qwen-companion-disk--renames nil nil #'equal))

(defun qwen-companion-disk-forget-renames ()
  "Forget the renames; call this when all users of them are done."
  (setq qwen-companion-disk--renames nil))

(defun qwen-companion-disk--forget-events ()
  "Forget the events that have not been processed."
  (qwen-companion-timers-cancel qwen-companion-disk--events-timer)
  (setq qwen-companion-disk--pending nil
        qwen-companion-disk--pending-times nil
        qwen-companion-disk--renames nil
        qwen-companion-disk--moved nil)
  (clrhash qwen-companion-disk--open-files))

(defun qwen-companion-disk--existing-directory (directory)
  "Return DIRECTORY, or the nearest one above it that exists."
  (let ((file-name-handler-alist nil))
    (while (not (file-directory-p directory))
      (setq directory (file-name-directory (directory-file-name directory))))
    directory))

(defun qwen-companion-disk--watch-directories (watch)
  "Watch the directories of WATCH that exist now."
  (let ((names (delete-dups
                (mapcar #'qwen-companion-disk--existing-directory
                        (qwen-companion-disk-watch-parents watch)))))
    (unless (equal names (qwen-companion-disk-watch-directories watch))
      (qwen-companion-disk--leave-directories watch)
      (setf (qwen-companion-disk-watch-directories watch) names))
    (dolist (name names)
      (let ((directory (or (gethash name qwen-companion-disk--directories)
                           (puthash name
                                    (make-qwen-companion-disk--directory :name name)
                                    qwen-companion-disk--directories))))
        (cl-pushnew watch (qwen-companion-disk--directory-watches directory))
        (unless (or (qwen-companion-disk--directory-descriptor directory)
                    (qwen-companion-disk--directory-timer directory))
          (qwen-companion-disk--open directory))))))

(defun qwen-companion-disk--leave-directories (watch)
  "Stop watching directories for WATCH."
  (dolist (name (cl-shiftf (qwen-companion-disk-watch-directories watch) nil))
    (when-let* ((directory (gethash name qwen-companion-disk--directories)))
      (setf (qwen-companion-disk--directory-watches directory)
            (delq watch (qwen-companion-disk--directory-watches directory)))
      (unless (qwen-companion-disk--directory-watches directory)
        (qwen-companion-disk--close directory)
        (remhash name qwen-companion-disk--directories)))))

(declare-function inotify-add-watch "ext:inotify.c" (filename aspect callback))
(declare-function inotify-rm-watch "ext:inotify.c" (watch-descriptor))
(defvar file-notify--library)

(defun qwen-companion-disk--open (directory)
  "Start watching DIRECTORY; poll it if that is impossible."
  (let ((name (qwen-companion-disk--directory-name directory)))
    (condition-case err
        (setf (qwen-companion-disk--directory-descriptor directory)
              (file-notify-add-watch
               name '(change)
               (lambda (event) (qwen-companion-disk--note-event directory event)))
              (qwen-companion-disk--directory-unavailable directory) nil
              (qwen-companion-disk--directory-writers directory)
              (and (eq file-notify--library 'inotify)
                   (ignore-error file-notify-error
                     (inotify-add-watch
                      (directory-file-name name)
                      '(create modify close-write delete moved-from moved-to)
                      (lambda (event)
                        (qwen-companion-disk--note-writer directory event))))))
      (file-notify-error
       (setf (qwen-companion-disk--directory-unavailable directory) t)
       (qwen-companion-disk--poll-later
        directory (cdr qwen-companion-disk--poll-intervals))
       (qwen-companion-backend-notice-once
        (format "some directories cannot be watched (%s); writes there appear after up to %d seconds"
                (error-message-string err)
                (cdr qwen-companion-disk--poll-intervals)))))))

(defun qwen-companion-disk--close (directory)
  "Stop watching or polling DIRECTORY."
  (qwen-companion-timers-cancel (qwen-companion-disk--directory-timer directory))
  (when-let* ((descriptor (qwen-companion-disk--directory-descriptor directory)))
    ;; First, because the end of a watch is an event too.
    (setf (qwen-companion-disk--directory-descriptor directory) nil)
    (file-notify-rm-watch descriptor))
  (qwen-companion-disk--forget-open-files directory))

(defun qwen-companion-disk--forget-open-files (directory)
  "Forget the open files of DIRECTORY, and stop watching for them."
  (when-let* ((descriptor (qwen-companion-disk--directory-writers directory)))
    (setf (qwen-companion-disk--directory-writers directory) nil)
    ;; The descriptor may have been removed with its directory.
    (ignore-error file-notify-error
      (inotify-rm-watch descriptor)))
  (let ((name (qwen-companion-disk--directory-name directory)))
    (maphash (lambda (file _time)
               (when (string-prefix-p name file)
                 (remhash file qwen-companion-disk--open-files)))
             qwen-companion-disk--open-files)))

(defun qwen-companion-disk--poll-later (directory seconds)
  "In SECONDS notify the watches of DIRECTORY, and try to watch it again."
  (setf (qwen-companion-disk--directory-timer directory)
        (run-at-time seconds nil #'qwen-companion-disk--poll directory)))

(defun qwen-companion-disk--poll (directory)
  "Notify the watches of DIRECTORY, and try to watch it again."
  (setf (qwen-companion-disk--directory-timer directory) nil)
  (qwen-companion-buffers-locally
    (when (file-directory-p (qwen-companion-disk--directory-name directory))
      (qwen-companion-disk--open directory))
    (qwen-companion-disk--notify directory)))

(defun qwen-companion-disk--notify (directory)
  "Notify the watches of DIRECTORY.
First watch the directories that exist now."
  (dolist (watch (copy-sequence
                  (qwen-companion-disk--directory-watches directory)))
    (when (qwen-companion-disk-watch-directories watch)
      (qwen-companion-disk--watch-directories watch)
      (qwen-companion-disk--call (qwen-companion-disk-watch-notify watch)))))

(defun qwen-companion-disk--call (function)
  "Call FUNCTION of a watch; report errors instead of signalling them."
  (condition-case err
      (funcall function)
    (error
     (qwen-companion-backend-notice
      (format "error after a file was written: %s" (error-message-string err))))))

(defun qwen-companion-disk--note-event (directory event)
  "Note the filenotify EVENT in DIRECTORY."
  (pcase-let ((`(,descriptor ,action ,file ,new) event))
    (when (equal descriptor (qwen-companion-disk--directory-descriptor directory))
      (qwen-companion-disk--note directory)
      (cond
       ((eq action 'stopped)
        ;; The directory was removed.
        (setf (qwen-companion-disk--directory-descriptor directory) nil)
        (qwen-companion-disk--forget-open-files directory))
       ((> (qwen-companion-disk--directory-events directory)
           qwen-companion-disk--burst)
        (qwen-companion-disk--close directory)
        (qwen-companion-disk--poll-later
         directory (car qwen-companion-disk--poll-intervals)))
       (t
        (when (eq action 'renamed)
          (push (cons file new) qwen-companion-disk--renames))
        (dolist (watch (gethash (or new file) qwen-companion-disk--watches))
          (when-let* ((function (qwen-companion-disk-watch-event watch)))
            (qwen-companion-disk--call function))))))))

(defun qwen-companion-disk--note-writer (directory event)
  "Note the inotify EVENT in DIRECTORY: a file is open for writing, or moved.
If other code watches the directory too, filenotify may report the new
name of a file as `created', without a close, or the old one as `deleted'."
  (pcase-let* ((`(,descriptor ,actions ,name ,cookie) event)
               (file (concat (qwen-companion-disk--directory-name directory) name))
               (watched (gethash file qwen-companion-disk--watches)))
    (when (equal descriptor (qwen-companion-disk--directory-writers directory))
      (cond
       ((memq 'moved-from actions)
        (setq qwen-companion-disk--moved (and watched (cons cookie file))))
       ((and (memq 'moved-to actions)
             (equal cookie (car qwen-companion-disk--moved)))
        (push (cons (cdr qwen-companion-disk--moved) file) qwen-companion-disk--renames)))
      (cond
       ((not watched))
       ((or (memq 'modify actions)
            (and (memq 'create actions)
                 ;; The new name of a file with text is a link.
                 (eql 0 (qwen-companion-disk--size file))))
        (puthash file (float-time) qwen-companion-disk--open-files))
       ((gethash file qwen-companion-disk--open-files)
        (remhash file qwen-companion-disk--open-files)
        (qwen-companion-disk--note directory))))))

(defun qwen-companion-disk--note (directory)
  "Record that DIRECTORY has an event, to be processed in a moment."
  (let ((now (float-time)))
    (if qwen-companion-disk--pending-times
        (setcdr qwen-companion-disk--pending-times now)
      (setq qwen-companion-disk--pending-times (cons now now))))
  (when (= 1 (cl-incf (qwen-companion-disk--directory-events directory)))
    (push directory qwen-companion-disk--pending))
  (unless qwen-companion-disk--events-timer
    (qwen-companion-disk--process-later qwen-companion-disk-quiet)))

(defun qwen-companion-disk--process-later (seconds)
  "Process the noted events in SECONDS."
  (setq qwen-companion-disk--events-timer
        (run-at-time seconds nil #'qwen-companion-disk--process-events)))

(defun qwen-companion-disk--process-events ()
  "Notify the watches of directories with events, once no more come."
  (setq qwen-companion-disk--events-timer nil)
  (pcase-let* ((`(,first . ,last) qwen-companion-disk--pending-times)
               (now (float-time))
               (quiet (- now last)))
    ;; Negative if the clock was set back.
    (if (and (<= 0 quiet)
             (< quiet qwen-companion-disk-quiet)
             (< (- now first) qwen-companion-disk-quiet-limit))
        (qwen-companion-disk--process-later (- qwen-companion-disk-quiet quiet))
      (let ((directories qwen-companion-disk--pending))
        (setq qwen-companion-disk--pending-times nil
              qwen-companion-disk--pending nil)
        (qwen-companion-buffers-locally
          (dolist (directory directories)
            (setf (qwen-companion-disk--directory-events directory) 0)
            (qwen-companion-disk--notify directory)))))))

;;; Expected writes

;; A CLI may wait for the answers to several proposals of one file and then
;; write one after the other.  So the expected writes to a file form a
;; sequence: a file with the last one also contains the earlier ones.

(cl-defun qwen-companion-disk-expect (path text &key optional stamp ready done)
  "Expect a write of a CLI to PATH, and return it as a struct.
TEXT is the expected contents of the file.  With OPTIONAL non-nil, the
write may not happen, and TEXT may be nil, for unknown.  STAMP is the
file's stamp before the write, by default its present one.  The wait times
out only after `qwen-companion-disk-expect-soon'.

Call READY with the struct once no write can be missed, before the file is
checked; READY lets the CLI write.

When the wait ends by itself, call DONE with two arguments.  The first is
`written' (the file has the text), `overwritten' (it has the text of a
later write), `changed' (it has another text than before) or `unchanged'.
The second is a string about the duration of the wait."
  (let* ((stamp (or stamp (qwen-companion-disk-stamp path)))
         (write (make-qwen-companion-disk--write
                 :path path :texts (and text (list text)) :optional optional
                 :done done :stamp stamp :reported stamp)))
    (setq qwen-companion-disk--writes
          (append qwen-companion-disk--writes (list write)))
    (let ((check (lambda () (qwen-companion-disk--check path))))
      (setf (qwen-companion-disk--write-watch write)
            (qwen-companion-disk-watch path check check)))
    (run-hook-with-args 'qwen-companion-disk-expecting-functions path)
    (when ready (funcall ready write))
    (qwen-companion-disk--check path)
    write))

(defun qwen-companion-disk-allow (write text)
  "Accept TEXT too as the result of WRITE.
It is the result of WRITE and the expected writes before it."
  (when (memq write qwen-companion-disk--writes)
    (push text (qwen-companion-disk--write-texts write))
    (push text (qwen-companion-disk--write-foreseen write))
    (setf (qwen-companion-disk--write-checked write) nil)
    (qwen-companion-disk--check (qwen-companion-disk--write-path write))))

(defun qwen-companion-disk-accepted (write)
  "Return the text that was accepted for WRITE, or nil when it is not known."
  (car (last (qwen-companion-disk--write-texts write))))

(defun qwen-companion-disk-untouched-p (write)
  "Return non-nil when the file is unchanged since the wait for WRITE began."
  (equal (qwen-companion-disk--write-stamp write)
         (qwen-companion-disk-stamp (qwen-companion-disk--write-path write))))

(defun qwen-companion-disk-expect-soon (write)
  "Start the time limit of WRITE: the CLI can write now."
  (when (and (memq write qwen-companion-disk--writes)
             (not (qwen-companion-disk--write-timer write)))
    (setf (qwen-companion-disk--write-timer write)
          (run-at-time qwen-companion-disk--patience nil
                       #'qwen-companion-disk--give-up write))))

(defun qwen-companion-disk-expect-later (write)
  "Stop the time limit of WRITE: the CLI waits for something else first."
  (qwen-companion-timers-cancel (qwen-companion-disk--write-timer write)))

(defun qwen-companion-disk--expected (path)
  "Return the expected writes to PATH, oldest first."
  (cl-remove path qwen-companion-disk--writes
             :key #'qwen-companion-disk--write-path :test-not #'equal))

(defun qwen-companion-disk-expected-p (path)
  "Return non-nil when a CLI may be about to write PATH."
  (and (qwen-companion-disk--expected path) t))

(defun qwen-companion-disk-forget-all ()
  "Stop waiting for writes."
  (mapc #'qwen-companion-disk-forget (copy-sequence qwen-companion-disk--writes)))

;;; Waiting

(defun qwen-companion-disk-forget (write)
  "Stop waiting for WRITE."
  (when (memq write qwen-companion-disk--writes)
    (setq qwen-companion-disk--writes (delq write qwen-companion-disk--writes))
    (qwen-companion-disk-expect-later write)
    (qwen-companion-disk-unwatch (qwen-companion-disk--write-watch write))
    (run-hook-with-args 'qwen-companion-disk-expecting-functions
                        (qwen-companion-disk--write-path write))))

(defun qwen-companion-disk-conclude (write exactly)
  "End the wait for WRITE, which has happened, EXACTLY as expected or not."
  (when (memq write qwen-companion-disk--writes)
    (qwen-companion-disk--run-written-functions (qwen-companion-disk--write-path write))
    (qwen-companion-disk--end write (if exactly 'written 'changed))))

(defun qwen-companion-disk--end (write result)
  "End the wait for WRITE with RESULT, see `qwen-companion-disk-expect'."
  (let ((how (format (if (qwen-companion-disk-watch-available-p
                          (qwen-companion-disk--write-watch write))
                         "within %d s"
                       ;; The file was not watched.
                       "(checked once, after %d s)")
                     qwen-companion-disk--patience)))
    (qwen-companion-disk-forget write)
    (when-let* ((done (qwen-companion-disk--write-done write)))
      (funcall done result how))))

(defun qwen-companion-disk--check (path)
  "Check whether the expected writes to PATH have happened."
  (when-let* ((row (qwen-companion-disk--expected path)))
    (let ((last (car (last row)))
          (file-name-handler-alist nil))
      (cond
       ((qwen-companion-disk--held last)
        (let ((foreseen (qwen-companion-disk--foreseen-p last)))
          (qwen-companion-disk--run-written-functions path)
          (dolist (write row)
            (when (memq write qwen-companion-disk--writes)
              (qwen-companion-disk--end
               write
               (if (or foreseen (qwen-companion-disk--held write))
                   'written
                 'overwritten))))))
       ((cl-some (lambda (write)
                   (or (qwen-companion-disk--write-optional write)
                       (qwen-companion-disk--held write)))
                 row)
        (qwen-companion-disk--run-written-functions path))))))

(defun qwen-companion-disk--held (write)
  "Return the text of WRITE that is in its file, or nil.
Read the file only if it may have changed since the last check: events
come for every file in its directory."
  (let* ((path (qwen-companion-disk--write-path write))
         (stamp (qwen-companion-disk-stamp path))
         (checked (qwen-companion-disk--write-checked write)))
    (if (and stamp (equal stamp (car checked)))
        (cdr checked)
      (let ((text (cl-find-if (apply-partially #'qwen-companion-disk-holds-p path)
                              (qwen-companion-disk--write-texts write))))
        (setf (qwen-companion-disk--write-checked write)
              (and stamp
                   (not (qwen-companion-disk-fresh-p (car stamp)))
                   (cons stamp text)))
        text))))

(defun qwen-companion-disk--foreseen-p (write)
  "Return non-nil when WRITE and the writes before it are in the file."
  (member (qwen-companion-disk--held write)
          (qwen-companion-disk--write-foreseen write)))

(defun qwen-companion-disk--run-written-functions (path)
  "Run `qwen-companion-disk-written-functions' if the file PATH has changed."
  (let ((row (qwen-companion-disk--expected path))
        (stamp (qwen-companion-disk-stamp path)))
    (unless (cl-every (lambda (write)
                        (equal stamp (qwen-companion-disk--write-reported write)))
                      row)
      (dolist (write row)
        (setf (qwen-companion-disk--write-reported write) stamp))
      (run-hook-with-args 'qwen-companion-disk-written-functions path))))

(defun qwen-companion-disk--give-up (write)
  "End the wait for WRITE after its time limit."
  (qwen-companion-buffers-locally
    (let* ((path (qwen-companion-disk--write-path write))
           (row (qwen-companion-disk--expected path)))
      (dolist (one row)
        ;; Compare the text anew, even if the time is the same.
        (setf (qwen-companion-disk--write-checked one) nil))
      (qwen-companion-disk--check path)
      (when (memq write qwen-companion-disk--writes)
        (qwen-companion-disk--run-written-functions path)
        (qwen-companion-disk--end
         write
         (cond
          ((or (qwen-companion-disk--held write)
               (cl-some #'qwen-companion-disk--foreseen-p (cdr (memq write row))))
           'written)
          ((equal (qwen-companion-disk--write-stamp write)
                  (qwen-companion-disk-stamp path))
           'unchanged)
          (t 'changed)))))))

(provide 'qwen-companion-disk)
;;; qwen-companion-disk.el ends here

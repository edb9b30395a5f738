;;; qwen-companion-follow.el --- Buffers follow their files  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; CLIs write the files; Emacs shows them.  While a CLI is connected, the
;; directories of the buffers that visit files under the roots are watched.  A
;; write is brought into these buffers as one undo step, or merged with their
;; unsaved text.
;;
;; The visited files are checked a few at a time.  A file that has changed is
;; read and compared; the Python process computes the edits, which are then
;; applied.
;;
;; If the file's modification time differs from the recorded one, the next key
;; makes Emacs ask whether to edit a changed file.  The key may come before the
;; event of the write.  So the recorded time is suspended while a buffer has no
;; unsaved text, and restored just before a change of the text, so that undo
;; records it.  The time is also suspended from the detection of a write until
;; the edits are applied.  Since the time protects saving as well, functions on
;; the hooks of saving replace it.
;;
;; Nothing here writes a file.

;;; Code:

(require 'cl-lib)
(require 'subr-x)
(require 'qwen-companion-backend)
(require 'qwen-companion-buffers)
(require 'qwen-companion-conflicts)
(require 'qwen-companion-disk)
(require 'qwen-companion-merge)
(require 'qwen-companion-options)
(require 'qwen-companion-places)
(require 'qwen-companion-programs)
(require 'qwen-companion-roots)
(require 'qwen-companion-timers)
(require 'qwen-companion-untrusted)

(defvar revert-buffer-preserve-modes)

(declare-function vc-refresh-state "vc-hooks" ())

(defcustom qwen-companion-follow-writes t
  "Whether buffers follow all writes to their files while a CLI is connected.
This applies to files under a workspace root, and to writes by any
program.  If nil, buffers follow only proposals that you accept."
  :group 'qwen-companion
  :type 'boolean
  :set (lambda (symbol value)
         (set-default symbol value)
         (when (fboundp 'qwen-companion-follow-update)
           (qwen-companion-follow-update))))

(defconst qwen-companion-follow--slice 0.003
  "Seconds of work without a pause.")

(defconst qwen-companion-follow--pause 0.001
  "Seconds of a pause, in which Emacs reacts to input.")

(defconst qwen-companion-follow--outstanding 8
  "Most unanswered requests for edits.")

(defconst qwen-companion-follow--writer-patience 10
  "Seconds to wait for a program that keeps a file open for writing.")

(defconst qwen-companion-follow--poll-seconds 1
  "Seconds between polls of the stamps of the followed files.
Writes to a file mapped into memory cause no event.")

(defconst qwen-companion-follow--save-wait 0.5
  "Seconds that saving waits for edits.")

(defconst qwen-companion-follow--command-wait (* 2 qwen-companion-disk-idle-writer)
  "Seconds that other commands wait for a buffer to catch up with its file.
A file that was truncated just before is followed after half of them.")

;;; The link of a buffer to its file

(cl-defstruct (qwen-companion-follow--link
               (:copier nil)
               (:constructor qwen-companion-follow--make-link))
  "The link between a buffer and the file it visits.
BASE is the text on disk from which the buffer's unsaved text started,
nil if there is none or it is unknown.  TIME is the recorded modification
time while that is suspended, else nil.  STAMP is the file's stamp when it
had the buffer's text, or nil if unknown.  RACY is non-nil when the file
may have changed without a new time since it was read.  REQUEST is the
pending request for edits, or nil.  EXPECTED is non-nil while the write of
an accepted proposal is due.  WATCH is the watch of the file while all
writes are followed.  MARK is shown in the mode line: `deleted', `changed',
or the new name of a renamed file.  REFUSAL is the reason to refuse the
save in progress, or nil.  TIMER checks again a file that is being written
since SINCE, in seconds; CUT is non-nil when it was found truncated in that
time.  POLLED is the stamp at the last poll that found a change.  HELD is
non-nil when the text on disk waits for conflicts to be resolved."
  base time stamp racy request expected watch mark refusal timer since cut
  polled held)

(cl-defstruct (qwen-companion-follow--request (:copier nil))
  "Edits that are being computed.
SOURCE is a buffer with the text of the file, CODING its detected coding
system, STAMP and TIME describe the file; RACY is non-nil when the file may
have changed since without a new time.  BASE is the common base of the
merge, nil to replace the buffer's text.  RESULT, for a buffer with
conflicts, is the merge with the user's text from before these, else nil;
HELD is non-nil when it cannot be applied before they are resolved.
EXPECTED is non-nil for an accepted proposal.  TICK is the buffer's
`buffer-chars-modified-tick' at the request.  TIMER waits to apply the
edits."
  source coding stamp time racy base result held expected tick timer)

(defvar-local qwen-companion-follow--link nil
  "The link of the current buffer to its file, nil when it is not followed.")
(put 'qwen-companion-follow--link 'permanent-local t)

(defvar-local qwen-companion-follow-far-deleted nil
  "Non-nil if the remote file of the current buffer is deleted.")
(put 'qwen-companion-follow-far-deleted 'permanent-local t)

(defvar qwen-companion-follow--requests nil
  "The requests for edits that wait for the Python process.")

(defun qwen-companion-follow--link-of (&optional buffer)
  "Return the link of BUFFER, by default the current one, or nil.
Indirect buffers share the link of their base."
  (let ((buffer (or buffer (current-buffer))))
    (buffer-local-value 'qwen-companion-follow--link
                        (or (buffer-base-buffer buffer) buffer))))

(defun qwen-companion-follow--make ()
  "Return the link of the current buffer; create it if necessary."
  (or qwen-companion-follow--link
      (prog1 (setq qwen-companion-follow--link (qwen-companion-follow--make-link))
        (qwen-companion-follow--note-stamp)
        ;; First of all: other functions may change the text before the save.
        (add-hook 'before-save-hook #'qwen-companion-follow--before-save -100 t))))

(defun qwen-companion-follow--note-stamp ()
  "Record the stamp of the file if the current buffer has its text.
A replacement of the same size and time will still be read."
  (let ((link qwen-companion-follow--link)
        (stamp (qwen-companion-disk-stamp buffer-file-name)))
    (when (and stamp
               (not (integerp (visited-file-modtime)))
               (verify-visited-file-modtime))
      (setf (qwen-companion-follow--link-stamp link) stamp)
      (unless (equal (nth 2 stamp) (car buffer-file-number))
        (setf (qwen-companion-follow--link-racy link) t)))))

;;; The followed buffers

(defvar qwen-companion-follow--search nil
  "The process that searches for a deleted file under its new name, or nil.")

(defvar qwen-companion-follow--poll-timer nil
  "Timer of the next poll, nil while writes are not followed.")
(defvar qwen-companion-follow--unpolled nil
  "Buffers whose files remain to be checked in this poll.")

(defvar qwen-companion-follow--roots '(nil)
  "The published roots, and their true names as directories.")

(defun qwen-companion-follow--active-p ()
  "Return non-nil when all writes are followed."
  (and qwen-companion-follow-writes
       (qwen-companion-backend-sessions)))

(defun qwen-companion-follow--root-p (file)
  "Return non-nil when FILE, a true name, is under a root."
  (let ((roots (qwen-companion-roots-published)))
    (unless (eq roots (car qwen-companion-follow--roots))
      (setq qwen-companion-follow--roots
            (cons roots (mapcar (lambda (root)
                                  (file-name-as-directory (file-truename root)))
                                roots))))
    (cl-some (lambda (root) (string-prefix-p root file))
             (cdr qwen-companion-follow--roots))))

(defun qwen-companion-follow--wanted-p ()
  "Return non-nil when the current buffer is to follow all writes."
  (and buffer-file-name
       (qwen-companion-follow--active-p)
       (not (qwen-companion-places-remote-p buffer-file-name))
       (qwen-companion-follow--root-p (expand-file-name buffer-file-truename))))

(defun qwen-companion-follow--begin ()
  "Follow all writes to the file of the current buffer."
  (let ((link (qwen-companion-follow--make))
        (buffer (current-buffer)))
    (unless (qwen-companion-follow--link-watch link)
      (setf (qwen-companion-follow--link-watch link)
            (qwen-companion-disk-watch
             buffer-file-name
             (lambda () (qwen-companion-follow--enqueue (list buffer)))
             (lambda () (qwen-companion-follow--expect-change buffer))))
      (unless qwen-companion-follow--poll-timer
        (qwen-companion-follow--poll-later qwen-companion-follow--poll-seconds))
      (qwen-companion-follow--find-base))))

(defun qwen-companion-follow--unwatch ()
  "Stop watching the file of the current buffer, if it is watched."
  (when-let* ((link qwen-companion-follow--link)
              (watch (qwen-companion-follow--link-watch link)))
    (setf (qwen-companion-follow--link-watch link) nil)
    (qwen-companion-disk-unwatch watch)))

(defun qwen-companion-follow--find-base ()
  "Read the base of the current buffer, which is modified, from disk.
Do nothing if the file has changed since it was visited."
  (let ((link qwen-companion-follow--link))
    (when (and (buffer-modified-p)
               (not (qwen-companion-follow--link-base link))
               (verify-visited-file-modtime)
               (not (qwen-companion-follow--obstacle)))
      (when-let* ((request (qwen-companion-follow--read)))
        (with-current-buffer (qwen-companion-follow--request-source request)
          (setf (qwen-companion-follow--link-base link)
                (qwen-companion-buffers-text)))
        (qwen-companion-follow--drop request)))))

(defun qwen-companion-follow--end ()
  "Stop following the current buffer and remove its link."
  (when qwen-companion-follow--link
    (qwen-companion-follow--cancel)
    (qwen-companion-follow--unwatch)
    (qwen-companion-follow--restore-modtime)
    (qwen-companion-follow--mark nil)
    (remove-hook 'before-save-hook #'qwen-companion-follow--before-save t)
    (kill-local-variable 'qwen-companion-follow--link)))

;;; Checking files, a few at a time

(defvar qwen-companion-follow--queue nil
  "Queue of the buffers whose files are to be checked.")
(defvar qwen-companion-follow--work-timer nil
  "Timer that continues with the queue.")
(defvar qwen-companion-follow--followed nil
  "The buffers that have followed since the last message about it.")

(defun qwen-companion-follow--enqueue (buffers)
  "Add BUFFERS to the queue, to check their files soon."
  (dolist (buffer buffers)
    (unless (memq buffer qwen-companion-follow--queue)
      (push buffer qwen-companion-follow--queue)))
  (qwen-companion-follow--go-on))

(defun qwen-companion-follow--expect-change (buffer)
  "Suspend the modification time of BUFFER after an event of its file.
Otherwise a key would ask whether to edit it before it is synchronised."
  (with-current-buffer buffer
    (unless (or (qwen-companion-follow--link-time qwen-companion-follow--link)
                (qwen-companion-follow--link-mark qwen-companion-follow--link)
                (verify-visited-file-modtime))
      (qwen-companion-follow--suspend-modtime))))

(defun qwen-companion-follow--go-on ()
  "Schedule the rest of the queue."
  (unless qwen-companion-follow--work-timer
    (setq qwen-companion-follow--work-timer
          (run-at-time qwen-companion-follow--pause nil
                       #'qwen-companion-follow--work))))

(defun qwen-companion-follow--work ()
  "Synchronise buffers of the queue for `qwen-companion-follow--slice' seconds."
  (setq qwen-companion-follow--work-timer nil)
  (let ((end (+ (float-time) qwen-companion-follow--slice)))
    (while (and qwen-companion-follow--queue
                (qwen-companion-follow--room-p)
                (< (float-time) end))
      (let ((buffer (pop qwen-companion-follow--queue)))
        (qwen-companion-buffers-when-live buffer
          (qwen-companion-follow--sync)))))
  (cond
   ((null qwen-companion-follow--queue)
    (qwen-companion-disk-forget-renames)
    (unless qwen-companion-follow--requests
      (qwen-companion-follow--report)))
   ((qwen-companion-follow--room-p)
    (qwen-companion-follow--go-on))))

(defun qwen-companion-follow--poll-later (seconds)
  "Poll the followed files in SECONDS."
  (setq qwen-companion-follow--poll-timer
        (run-at-time seconds nil #'qwen-companion-follow--poll)))

(defun qwen-companion-follow--poll ()
  "Enqueue the buffers whose files have changed without an event."
  (setq qwen-companion-follow--poll-timer nil)
  (let ((end (+ (float-time) qwen-companion-follow--slice))
        (buffers (or qwen-companion-follow--unpolled
                     (cl-remove-if-not #'buffer-file-name (buffer-list)))))
    (while (and buffers (< (float-time) end))
      (let ((buffer (pop buffers)))
        (qwen-companion-buffers-when-live buffer
          ;; Errors, as from circular links, must not end the polls.
          (ignore-errors
            (qwen-companion-follow--poll-here)))))
    (setq qwen-companion-follow--unpolled buffers)
    (when (qwen-companion-follow--active-p)
      (qwen-companion-follow--poll-later
       (if buffers
           qwen-companion-follow--pause
         qwen-companion-follow--poll-seconds)))))

(defun qwen-companion-follow--poll-here ()
  "Enqueue the current buffer if its file has changed since the last poll.
Also enqueue it if it should be followed and is not yet: visiting a file by
the command `find-file-literally', for one, runs no hook."
  (let* ((link qwen-companion-follow--link)
         (stamp (and link
                     (qwen-companion-follow--link-watch link)
                     (not (qwen-companion-follow--pending-p link))
                     (qwen-companion-disk-stamp buffer-file-name))))
    (when (if link
              (not (member stamp (list nil (qwen-companion-follow--link-stamp link)
                                       (qwen-companion-follow--link-polled link))))
            (qwen-companion-follow--wanted-p))
      (when link
        (setf (qwen-companion-follow--link-polled link) stamp))
      (qwen-companion-follow--enqueue (list (current-buffer))))))

(defun qwen-companion-follow--room-p ()
  "Return non-nil when another request may be made."
  (< (length qwen-companion-follow--requests)
     qwen-companion-follow--outstanding))

(defun qwen-companion-follow--report ()
  "Show one message about the buffers that have followed."
  (let ((buffers (cl-remove-if-not #'buffer-live-p
                                   (cl-shiftf qwen-companion-follow--followed nil))))
    (when buffers
      (message "qwen-companion: %s the changes on disk"
               (if (cdr buffers)
                   (format "%d buffers follow" (length buffers))
                 (format "%s follows" (buffer-name (car buffers))))))))

(defun qwen-companion-follow--sync ()
  "Begin or end following in the current buffer, and synchronise it."
  (if (qwen-companion-follow--wanted-p)
      (qwen-companion-follow--begin)
    (qwen-companion-follow--unwatch))
  (when qwen-companion-follow--link
    (qwen-companion-follow--check)
    (qwen-companion-follow--release-link)))

(defun qwen-companion-follow--release-link ()
  "Remove the link of the current buffer unless it is still needed."
  (let ((link qwen-companion-follow--link))
    (unless (or (null link)
                (qwen-companion-follow--link-watch link)
                (qwen-companion-follow--link-expected link)
                (qwen-companion-follow--pending-p link))
      (qwen-companion-follow--end))))

(defun qwen-companion-follow--check ()
  "Synchronise the current buffer if its file has changed."
  (let* ((link qwen-companion-follow--link)
         (request (qwen-companion-follow--link-request link))
         (stamp (qwen-companion-disk-stamp buffer-file-name)))
    (cond
     ((null stamp)
      (qwen-companion-follow--clear-pending)
      (qwen-companion-follow--mark-gone))
     ((and request
           (equal stamp (qwen-companion-follow--request-stamp request)))
      ;; A change of the text may have restored it.
      (qwen-companion-follow--suspend-modtime))
     ((not (qwen-companion-follow--changed-p))
      (qwen-companion-follow--mark nil)
      (qwen-companion-follow--clear-pending))
     (t
      (qwen-companion-follow--cancel)
      (qwen-companion-follow--enqueue-other-names)
      (if (qwen-companion-follow--being-written-p)
          (qwen-companion-follow--sync-again)
        (qwen-companion-follow--forget-writer)
        (let* ((obstacle (qwen-companion-follow--obstacle))
               (request (and (not obstacle) (qwen-companion-follow--read))))
          (cond
           ((not (equal stamp (qwen-companion-disk-stamp buffer-file-name)))
            (when request
              (qwen-companion-follow--drop request))
            (qwen-companion-follow--sync-again))
           (request (qwen-companion-follow--compare request))
           (t (qwen-companion-follow--give-up obstacle)))))))))

(defun qwen-companion-follow--being-written-p ()
  "Return non-nil if the file of the current buffer may be incomplete.
Return nil after `qwen-companion-follow--writer-patience' seconds anyway."
  (let* ((since (qwen-companion-follow--link-since qwen-companion-follow--link))
         ;; The clock may have been set back since.
         (waited (if since (abs (- (float-time) since)) 0)))
    (or (and (< waited qwen-companion-disk-quiet-limit)
             (qwen-companion-disk-fresh-p (qwen-companion-follow--file-time)))
        (and (< waited qwen-companion-follow--writer-patience)
             (when-let* ((watch (qwen-companion-follow--link-watch
                                 qwen-companion-follow--link)))
               (or (qwen-companion-disk-being-written-p watch)
                   (and (qwen-companion-follow--cut-p)
                        (or (qwen-companion-disk-open-p watch)
                            ;; Programs can set the modification time.
                            (when-let* ((stamp (qwen-companion-disk-stamp buffer-file-name)))
                              (< (abs (float-time (time-since (nth 3 stamp))))
                                 qwen-companion-disk-idle-writer))))))))))

(defun qwen-companion-follow--cut-p ()
  "Return non-nil if the file of the current buffer lacks most of its text.
A program may have truncated it to rewrite it in pieces.  The file counts
as truncated until its end is as before, unless it was replaced as a whole
or an accepted proposal determines its contents."
  (let* ((link qwen-companion-follow--link)
         (old (qwen-companion-follow--link-stamp link))
         (new (qwen-companion-disk-stamp buffer-file-name)))
    (unless (qwen-companion-follow--link-cut link)
      (setf (qwen-companion-follow--link-cut link)
            (and old new
                 (not (qwen-companion-follow--link-expected link))
                 (equal (nth 2 old) (nth 2 new))
                 (< (* 4 (nth 1 new)) (* 3 (nth 1 old))))))
    (and (qwen-companion-follow--link-cut link)
         (not (qwen-companion-follow--ends-alike-p)))))

(defun qwen-companion-follow--ends-alike-p ()
  "Return non-nil if the file of the current buffer still ends as its text did."
  (let* ((base (and (buffer-modified-p)
                    (qwen-companion-follow--link-base qwen-companion-follow--link)))
         (text (if base
                   (substring base (max 0 (- (length base) 80)))
                 (save-restriction
                   (widen)
                   (buffer-substring-no-properties (max 1 (- (point-max) 80))
                                                   (point-max)))))
         (end (encode-coding-string text (or buffer-file-coding-system 'utf-8) t)))
    (equal end (qwen-companion-disk-last-bytes buffer-file-name (length end)))))

(defun qwen-companion-follow--forget-writer ()
  "Stop waiting for a program that writes the file of the current buffer."
  (let ((link qwen-companion-follow--link))
    (setf (qwen-companion-follow--link-since link) nil
          (qwen-companion-follow--link-cut link) nil)))

(defun qwen-companion-follow--sync-again ()
  "Schedule another check of the file of the current buffer."
  (let ((link qwen-companion-follow--link))
    (qwen-companion-follow--suspend-modtime)
    (unless (qwen-companion-follow--link-since link)
      (setf (qwen-companion-follow--link-since link) (float-time)))
    (setf (qwen-companion-follow--link-timer link)
          (run-at-time qwen-companion-disk-quiet nil
                       #'qwen-companion-follow--check-buffer (current-buffer)))))

(defun qwen-companion-follow--check-buffer (buffer)
  "Check the file of BUFFER; for the timer of its link."
  (with-current-buffer buffer
    (setf (qwen-companion-follow--link-timer qwen-companion-follow--link) nil)
    (qwen-companion-follow--sync)))

(defun qwen-companion-follow--recorded-time ()
  "Return the file's modification time recorded in the current buffer."
  (or (qwen-companion-follow--link-time qwen-companion-follow--link)
      (visited-file-modtime)))

(defun qwen-companion-follow--changed-p ()
  "Return non-nil when the file of the current buffer, which exists, has changed.
Its text may still be the same."
  (let* ((link qwen-companion-follow--link)
         (time (qwen-companion-follow--link-time link)))
    (cond
     ((qwen-companion-follow--link-racy link))
     ((and (qwen-companion-follow--link-stamp link)
           (not (equal (qwen-companion-follow--link-stamp link)
                       (qwen-companion-disk-stamp buffer-file-name)))))
     ((null time) (not (verify-visited-file-modtime)))
     ;; Not a time: the file did not exist.
     ((integerp time) t)
     (t (not (time-equal-p time (qwen-companion-follow--file-time)))))))

(defun qwen-companion-follow--file-time ()
  "Return the modification time of the file of the current buffer."
  (file-attribute-modification-time
   (file-attributes (file-chase-links buffer-file-name))))

(defun qwen-companion-follow--enqueue-other-names ()
  "Enqueue the buffers that visit the current file by another name."
  (let ((file (file-chase-links buffer-file-name)))
    ;; It may have just been deleted, here and below.
    (when (> (or (file-attribute-link-number (file-attributes file)) 0) 1)
      (qwen-companion-follow--enqueue
       (delq (current-buffer) (qwen-companion-disk-buffers file))))))

(defun qwen-companion-follow--obstacle ()
  "Return the reason why the current buffer cannot follow its file, or nil.
Reasons are a text unlike the file's, a special way of reverting, and a
very large file."
  (cond
   ((not (and (memq revert-buffer-function '(nil revert-buffer--default))
              (memq revert-buffer-insert-file-contents-function
                    '(nil revert-buffer-insert-file-contents--default-function))))
    (format "%s reverts files in its own way" major-mode))
   ((or find-file-literally (not enable-multibyte-characters))
    "it shows bytes, not characters")
   (buffer-file-format "its text is converted when it is read")
   ((bound-and-true-p auto-revert-tail-mode) "Auto-Revert Tail mode reads it")
   ((find-file-name-handler buffer-file-name 'insert-file-contents)
    "its text differs from the file's")
   ((not (qwen-companion-disk-regular-p buffer-file-name)) "it is not a regular file")
   ((> (or (file-attribute-size (file-attributes (file-chase-links buffer-file-name))) 0)
       qwen-companion-diff-size-limit)
    "the file is larger than `qwen-companion-diff-size-limit'")))

;;; Reading

(defun qwen-companion-follow--read ()
  "Read the file of the current buffer as reverting would.
Return a request without base and tick, or nil when it cannot be read."
  (let* ((file buffer-file-name)
         (stamp (qwen-companion-disk-stamp file))
         (time (qwen-companion-follow--file-time))
         (explicit (car buffer-file-coding-system-explicit))
         (source (generate-new-buffer " *qwen-companion disk*" t)))
    (condition-case nil
        (with-current-buffer source
          (buffer-disable-undo)
          (make-qwen-companion-follow--request
           :source source :coding (qwen-companion-disk-insert file explicit)
           :stamp stamp :time time
           :racy (qwen-companion-disk-fresh-p time)))
      (error
       (kill-buffer source)
       nil))))

(defun qwen-companion-follow--drop (request)
  "Forget REQUEST; kill its buffer and cancel its timer."
  (setq qwen-companion-follow--requests
        (delq request qwen-companion-follow--requests))
  (when-let* ((timer (qwen-companion-follow--request-timer request)))
    (cancel-timer timer))
  (kill-buffer (qwen-companion-follow--request-source request)))

(defun qwen-companion-follow--cancel ()
  "Cancel the pending edits of the current buffer, if there are any."
  (let ((link qwen-companion-follow--link))
    (qwen-companion-timers-cancel (qwen-companion-follow--link-timer link))
    (when-let* ((request (qwen-companion-follow--link-request link)))
      (setf (qwen-companion-follow--link-request link) nil)
      (qwen-companion-follow--drop request))))

(defun qwen-companion-follow--pending-p (link)
  "Return non-nil when edits of the buffer of LINK are pending."
  (or (qwen-companion-follow--link-request link)
      (qwen-companion-follow--link-timer link)))

(defun qwen-companion-follow--clear-pending ()
  "Note that the current buffer is up to date with its file."
  (let ((link qwen-companion-follow--link))
    (qwen-companion-follow--cancel)
    (qwen-companion-follow--forget-writer)
    (unless (qwen-companion-follow--link-expected link)
      (unless (buffer-modified-p)
        (setf (qwen-companion-follow--link-base link) nil))
      (unless (qwen-companion-follow--suspend-if-clean)
        (qwen-companion-follow--restore-modtime)))))

(defun qwen-companion-follow--suspend-if-clean ()
  "Suspend the modification time if the current buffer has its file's text.
Return non-nil then; return nil for a buffer that is not followed."
  (let ((link qwen-companion-follow--link))
    (when (and (not (buffer-modified-p))
               (qwen-companion-follow--link-watch link)
               (not (qwen-companion-follow--link-mark link))
               (file-exists-p buffer-file-name)
               (not (qwen-companion-follow--obstacle)))
      (qwen-companion-follow--suspend-modtime)
      t)))

(defun qwen-companion-follow--compare (request)
  "Adopt REQUEST as it is, request its edits, or leave the current buffer alone."
  (let* ((link qwen-companion-follow--link)
         (source (qwen-companion-follow--request-source request))
         ;; Text saved since a proposal was accepted is not in the CLI's text,
         ;; so it is merged as if it were unsaved.
         (base (and (or (buffer-modified-p)
                        (qwen-companion-follow--link-expected link))
                    (qwen-companion-follow--link-base link))))
    (cond
     ((qwen-companion-disk-same-text-p source)
      (qwen-companion-follow--adopt-file-state request)
      (when (buffer-modified-p)
        (qwen-companion-follow--set-unmodified))
      (qwen-companion-follow--suspend-if-clean)
      (qwen-companion-follow--drop request))
     ((and (not base) (not (buffer-modified-p)))
      (qwen-companion-follow--suspend-modtime)
      (qwen-companion-follow--request-edits request))
     ((not base)
      (qwen-companion-follow--drop request)
      (qwen-companion-follow--give-up))
     ((with-current-buffer source
        (equal base (qwen-companion-buffers-text)))
      ;; The same text was written again.
      (qwen-companion-follow--adopt-file-state request)
      (qwen-companion-follow--drop request))
     ((and (qwen-companion-conflicts-p) (not (qwen-companion-conflicts-origin)))
      (qwen-companion-follow--drop request)
      (qwen-companion-follow--hold))
     (t
      (setf (qwen-companion-follow--request-base request) base)
      (qwen-companion-follow--suspend-modtime)
      (qwen-companion-follow--request-edits request)))))

(defun qwen-companion-follow--adopt-file-state (request)
  "Record the file's time and coding system of REQUEST in the current buffer."
  (let ((link qwen-companion-follow--link)
        (time (qwen-companion-follow--request-time request)))
    (setf (qwen-companion-follow--link-time link) nil
          (qwen-companion-follow--link-racy link)
          (qwen-companion-follow--request-racy request))
    (set-visited-file-modtime time)
    (setf (qwen-companion-follow--link-stamp link)
          (qwen-companion-follow--request-stamp request))
    (setq buffer-file-coding-system
          (qwen-companion-disk-fitting-coding
           (qwen-companion-follow--request-coding request))
          buffer-file-number
          (qwen-companion-disk-file-number buffer-file-name))
    (qwen-companion-follow--mark nil)
    (force-mode-line-update)))

(defun qwen-companion-follow--set-unmodified ()
  "Mark the current buffer as unmodified: it has the text of its file."
  (let ((create-lockfiles nil))
    (set-buffer-modified-p nil))
  (set-buffer-auto-saved)
  (setf (qwen-companion-follow--link-base qwen-companion-follow--link) nil)
  ;; The new text on disk is worth a backup at the next save.
  (setq buffer-backed-up nil))

(defun qwen-companion-follow--give-up (&optional obstacle)
  "Mark the current buffer as different from its file, and tell the user.
OBSTACLE is the reason not to follow, nil after a single failure."
  (qwen-companion-follow--restore-modtime)
  (unless (eq 'changed (qwen-companion-follow--link-mark qwen-companion-follow--link))
    (qwen-companion-follow--mark 'changed)
    (cond
     ((buffer-modified-p)
      (message "qwen-companion: %s changed on disk, and %s has unsaved text; M-x ediff-current-file compares them"
               (qwen-companion-untrusted-path buffer-file-name) (buffer-name)))
     ((and obstacle
           (not (bound-and-true-p auto-revert-mode))
           (not (bound-and-true-p auto-revert-tail-mode)))
      (message "qwen-companion: %s changed on disk, and %s does not follow: %s; M-x revert-buffer reads it"
               (qwen-companion-untrusted-path buffer-file-name) (buffer-name) obstacle)))))

;;; Editing

(defun qwen-companion-follow--request-edits (request)
  "Request the edits that turn the current buffer's text into that of REQUEST."
  (let ((buffer (current-buffer)))
    (setf (qwen-companion-follow--request-tick request) (buffer-chars-modified-tick)
          (qwen-companion-follow--request-expected request)
          (qwen-companion-follow--link-expected qwen-companion-follow--link)
          (qwen-companion-follow--link-request qwen-companion-follow--link) request)
    (push request qwen-companion-follow--requests)
    (if-let* ((origin (qwen-companion-conflicts-origin)))
        (qwen-companion-follow--merge-again buffer request origin)
      (qwen-companion-merge-texts
       (qwen-companion-follow--request-base request) buffer
       (qwen-companion-follow--request-source request)
       qwen-companion-conflicts-labels
       (lambda (merged)
         (qwen-companion-follow--answered buffer request merged))))))

(defun qwen-companion-follow--merge-again (buffer request origin)
  "Request the edits for REQUEST in BUFFER, which has conflicts.
Merging markers would nest them.  So repeat ORIGIN, the merge that made the
conflicts, with the present text on disk, and merge the user's later
changes with the result."
  (pcase-let ((`(,base ,mine ,result) origin)
              (source (qwen-companion-follow--request-source request)))
    (qwen-companion-merge-texts
     base mine source qwen-companion-conflicts-labels
     (lambda (again)
       (if (not (and again (buffer-live-p buffer) (buffer-live-p source)))
           (qwen-companion-follow--answered buffer request nil)
         (let ((theirs (or (qwen-companion-merge-result-text again)
                           (with-current-buffer source (qwen-companion-buffers-text)))))
           (setf (qwen-companion-follow--request-result request) theirs)
           (qwen-companion-merge-texts
            result buffer theirs qwen-companion-conflicts-labels
            (lambda (merged)
              (cond
               ((null merged))
               ((> (qwen-companion-merge-result-conflicts merged) 0)
                (setf (qwen-companion-follow--request-held request) t)
                (setq merged nil))
               ((null (qwen-companion-merge-result-text merged))
                (setf (qwen-companion-merge-result-text merged) theirs)))
              (qwen-companion-follow--answered buffer request merged)))))))))

(defvar qwen-companion-follow--saving nil
  "Non-nil while saving waits for edits.")

(defun qwen-companion-follow--busy-p ()
  "Return non-nil when a change of the current buffer would disturb a command.
A command that waits for input or output may rely on the text; so may a
question about saving."
  (and (not qwen-companion-follow--saving)
       (or this-command
           (and (buffer-modified-p) (active-minibuffer-window)))))

(defun qwen-companion-follow--answered (buffer request merged)
  "Apply MERGED, the answer to REQUEST, to BUFFER if both are still current."
  (setq qwen-companion-follow--requests
        (delq request qwen-companion-follow--requests))
  (let ((link (and (buffer-live-p buffer) (qwen-companion-follow--link-of buffer))))
    (cond
     ((not (and link (eq request (qwen-companion-follow--link-request link)))))
     ((with-current-buffer buffer (qwen-companion-follow--busy-p))
      (setf (qwen-companion-follow--request-timer request)
            (run-at-time qwen-companion-disk-quiet nil
                         #'qwen-companion-follow--answered
                         buffer request merged)))
     (t
      (with-current-buffer buffer
        (let ((typed (/= (buffer-chars-modified-tick)
                         (qwen-companion-follow--request-tick request))))
          (setf (qwen-companion-follow--link-request link) nil)
          (unless typed
            (qwen-companion-follow--apply request merged))
          (qwen-companion-follow--drop request)
          (if (or typed
                  ;; It was written again.
                  (not (equal (qwen-companion-follow--request-stamp request)
                              (qwen-companion-disk-stamp buffer-file-name))))
              (qwen-companion-follow--sync)
            (qwen-companion-follow--release-link)))))))
  (qwen-companion-follow--go-on))

(defun qwen-companion-follow--apply (request merged)
  "Bring the current buffer to REQUEST by MERGED; change nothing on errors."
  (condition-case err
      (cond
       ((not (qwen-companion-follow--request-base request))
        (qwen-companion-follow--refresh request merged))
       ((qwen-companion-follow--request-held request)
        (qwen-companion-follow--hold))
       (merged
        (qwen-companion-follow--merge request merged))
       (t (qwen-companion-follow--give-up)))
    (error
     (qwen-companion-follow--give-up)
     (qwen-companion-backend-notice
      (format "%s could not follow its file: %s" (buffer-name)
              (error-message-string err))))))

(defun qwen-companion-follow--edit (request merged)
  "Change the text of the current buffer to REQUEST by MERGED, one undo step.
No question is asked, whatever happens to the file meanwhile."
  (let ((source (qwen-companion-follow--request-source request))
        (create-lockfiles nil)
        (modified (buffer-modified-p)))
    (qwen-companion-follow--suspend-modtime)
    ;; As modified, so that the undo record does not say that an undo saves it.
    (restore-buffer-modified-p t)
    (condition-case err
        (progn
          (if merged
              (qwen-companion-merge-apply merged source)
            (qwen-companion-follow--replace source))
          (qwen-companion-disk-adopt-coding
           (qwen-companion-follow--request-coding request)))
      (error
       (restore-buffer-modified-p modified)
       (signal (car err) (cdr err))))))

(defun qwen-companion-follow--replace (source)
  "Replace the current buffer's text by that of SOURCE, without Python."
  (let ((inhibit-read-only t))
    (save-restriction
      (widen)
      (undo-boundary)
      (replace-buffer-contents source 0.1)
      (undo-boundary))))

(defun qwen-companion-follow--refresh (request merged)
  "Bring the unmodified current buffer to REQUEST by MERGED, like a revert."
  (let ((revert-buffer-in-progress-p t)
        ;; The major mode is not called again; functions on the hooks must run.
        (revert-buffer-preserve-modes t))
    (qwen-companion-follow--run-hook 'before-revert-hook)
    (qwen-companion-follow--edit request merged)
    (qwen-companion-follow--adopt-file-state request)
    (qwen-companion-follow--set-unmodified)
    (qwen-companion-follow--refresh-vc-soon)
    (unless (qwen-companion-follow--request-expected request)
      (push (current-buffer) qwen-companion-follow--followed))
    (qwen-companion-follow--run-hook 'after-revert-hook)))

(defun qwen-companion-follow--run-hook (hook)
  "Run HOOK, a hook of reverting; show a message about an error in it.
Skip eglot's functions, which close and reopen the file for its server: some
servers then report no problems in an unchanged text.  The server gets the
edit itself, as with lsp-mode by `lsp-on-revert'."
  (condition-case err
      (run-hook-wrapped hook (lambda (function)
                               (unless (and (symbolp function)
                                            (string-prefix-p "eglot-" (symbol-name function)))
                                 (funcall function))
                               nil))
    (error
     (qwen-companion-backend-notice
      (format "error in `%s' of %s: %s" hook (buffer-name)
              (error-message-string err))))))

(defun qwen-companion-follow--hold ()
  "Postpone the text on disk until the buffer's conflicts are resolved.
Until then no key asks about the file and the buffer cannot be saved."
  (unless (qwen-companion-follow--held-p)
    (message "qwen-companion: %s changed on disk again; %s follows when its conflicts are resolved"
             (qwen-companion-untrusted-path buffer-file-name) (buffer-name)))
  (qwen-companion-follow--suspend-modtime)
  (setf (qwen-companion-follow--link-held qwen-companion-follow--link) t))

(defun qwen-companion-follow--held-p ()
  "Return non-nil while the text on disk is postponed because of conflicts."
  (let ((link qwen-companion-follow--link))
    (and (qwen-companion-follow--link-held link)
         (or (qwen-companion-conflicts-p)
             (setf (qwen-companion-follow--link-held link) nil)))))

(defun qwen-companion-follow--merge (request merged)
  "Merge REQUEST into the current buffer, which has unsaved text.
MERGED is the result."
  (let* ((origin (qwen-companion-conflicts-origin))
         (base (or (car origin) (qwen-companion-follow--request-base request)))
         (mine (or (cadr origin) (qwen-companion-buffers-text)))
         (conflicts (qwen-companion-merge-result-conflicts merged))
         (source (qwen-companion-follow--request-source request)))
    (qwen-companion-follow--edit request merged)
    (setf (qwen-companion-follow--link-held qwen-companion-follow--link) nil)
    (when (or origin (> conflicts 0))
      (setq conflicts
            (qwen-companion-conflicts-begin
             base mine (or (qwen-companion-follow--request-result request)
                           (qwen-companion-buffers-text)))))
    (qwen-companion-follow--adopt-file-state request)
    (setf (qwen-companion-follow--link-base qwen-companion-follow--link)
          (with-current-buffer source (qwen-companion-buffers-text)))
    (cond
     ((> conflicts 0)
      (when qwen-companion-follow--saving
        (setq qwen-companion-follow--saving 'conflicts))
      (message "qwen-companion: %d conflict%s between your text in %s and the file on disk"
               conflicts (if (= conflicts 1) "" "s") (buffer-name)))
     ((qwen-companion-disk-same-text-p source)
      (qwen-companion-follow--set-unmodified)
      (qwen-companion-follow--suspend-if-clean))
     (t
      (message "qwen-companion: merged the change on disk into %s (not saved)"
               (buffer-name))))))

;;; Version control

(defvar qwen-companion-follow--vc-buffers nil
  "The buffers whose version control state is out of date.")
(defvar qwen-companion-follow--vc-timer nil
  "Idle timer that refreshes the version control state.")

(defconst qwen-companion-follow--vc-delay 0.3
  "Seconds without input after which version control is refreshed.")

(defun qwen-companion-follow--refresh-vc-soon ()
  "Refresh the version control state of the current buffer when Emacs is idle.
This starts programs, which takes longer than the change of the text."
  (when vc-handled-backends
    (cl-pushnew (current-buffer) qwen-companion-follow--vc-buffers)
    (unless qwen-companion-follow--vc-timer
      (qwen-companion-follow--refresh-vc-when-idle))))

(defun qwen-companion-follow--refresh-vc-when-idle ()
  "Refresh version control once Emacs is idle."
  (setq qwen-companion-follow--vc-timer
        (run-with-idle-timer qwen-companion-follow--vc-delay nil
                             #'qwen-companion-follow--refresh-vc)))

(defun qwen-companion-follow--refresh-vc ()
  "Refresh version control until input comes, visible buffers first."
  (setq qwen-companion-follow--vc-buffers
        (cl-delete-if-not #'buffer-live-p qwen-companion-follow--vc-buffers))
  (while (and qwen-companion-follow--vc-buffers
              (not (input-pending-p)))
    (let ((buffer (or (cl-find-if (lambda (buffer) (get-buffer-window buffer 'visible))
                                  qwen-companion-follow--vc-buffers)
                      (car qwen-companion-follow--vc-buffers))))
      (setq qwen-companion-follow--vc-buffers
            (delq buffer qwen-companion-follow--vc-buffers))
      (with-current-buffer buffer
        ;; Git would lock its index and make a `git commit' of the agent fail.
        (qwen-companion-programs-call-with-git default-directory #'vc-refresh-state)
        (force-mode-line-update))))
  (setq qwen-companion-follow--vc-timer
        ;; A file notification counts as input, but Emacs stays idle, so an
        ;; idle timer would not run again.
        (and qwen-companion-follow--vc-buffers
             (run-at-time qwen-companion-follow--vc-delay nil
                          #'qwen-companion-follow--refresh-vc-when-idle))))

;;; Typing and saving meanwhile

(defun qwen-companion-follow--suspend-modtime ()
  "Suspend the file's modification time in the current buffer.
While it is unknown, no key asks whether to edit a changed file."
  (let ((link qwen-companion-follow--link))
    (unless (qwen-companion-follow--link-time link)
      (setf (qwen-companion-follow--link-time link) (visited-file-modtime))
      (clear-visited-file-modtime))))

(defun qwen-companion-follow--restore-modtime ()
  "Undo `qwen-companion-follow--suspend-modtime'."
  (let ((link qwen-companion-follow--link))
    (when-let* ((time (qwen-companion-follow--link-time link)))
      (setf (qwen-companion-follow--link-time link) nil)
      (set-visited-file-modtime time))))

(put 'qwen-companion-follow--before-save 'permanent-local-hook t)

(put 'qwen-companion-follow--refuse-save 'permanent-local-hook t)

(defun qwen-companion-follow--before-save ()
  "Prevent the current buffer from overwriting a text that it has not merged.
Wait a moment for the merge.  If it does not come, or leaves conflicts,
arrange for the save to be refused: an error in this hook would only be
reported."
  (when-let* ((link (and buffer-file-name qwen-companion-follow--link))
              ;; Otherwise Emacs has asked already.
              ((verify-visited-file-modtime)))
    (let ((qwen-companion-follow--saving t)
          (name (qwen-companion-untrusted-path buffer-file-name)))
      (qwen-companion-follow--check)
      (qwen-companion-follow--wait (current-buffer) qwen-companion-follow--save-wait)
      (when-let* ((refusal
                   (cond
                    ((qwen-companion-follow--pending-p link)
                     (format "%s changed on disk and is not merged yet; save again in a moment"
                             name))
                    ((qwen-companion-follow--held-p)
                     (format "%s changed on disk again; resolve the conflicts to merge that too"
                             name))
                    ((eq qwen-companion-follow--saving 'conflicts)
                     (format "%s changed on disk; resolve the conflicts before you save"
                             name))
                    ((not (verify-visited-file-modtime))
                     (format "%s has changed on disk; compare it with M-x ediff-current-file, or save again"
                             name)))))
        (setf (qwen-companion-follow--link-refusal link) refusal)
        (add-hook 'write-contents-functions
                  #'qwen-companion-follow--refuse-save -100 t)))))

(defun qwen-companion-follow--refuse-save ()
  "Signal a `user-error' with the reason not to save the current buffer."
  (remove-hook 'write-contents-functions #'qwen-companion-follow--refuse-save t)
  (when-let* ((link qwen-companion-follow--link))
    (user-error "%s" (cl-shiftf (qwen-companion-follow--link-refusal link) nil))))

(defun qwen-companion-follow--wait (buffer seconds)
  "Wait for the pending edits of BUFFER, SECONDS at most.
The user can quit even if quitting is inhibited."
  (qwen-companion-backend-wait
   (lambda ()
     (or quit-flag (not (qwen-companion-follow--waiting-p buffer))))
   seconds))

(defun qwen-companion-follow--waiting-p (buffer)
  "Return non-nil when edits of BUFFER, which may be dead, are pending."
  (when-let* ((link (and (buffer-live-p buffer)
                         (qwen-companion-follow--link-of buffer))))
    (qwen-companion-follow--pending-p link)))

(defun qwen-companion-follow--first-change ()
  "Save the text of the current buffer, as read from disk, as the base.
Call this before its first change."
  (when-let* ((link (qwen-companion-follow--link-of)))
    (unless (and (qwen-companion-follow--link-expected link)
                 (qwen-companion-follow--link-base link))
      (setf (qwen-companion-follow--link-base link)
            (qwen-companion-buffers-text)))
    (when (qwen-companion-follow--link-time link)
      (with-current-buffer (or (buffer-base-buffer) (current-buffer))
        (qwen-companion-follow--restore-modtime))
      (unless (and (verify-visited-file-modtime (buffer-base-buffer))
                   (not (qwen-companion-follow--link-expected link)))
        (add-hook 'after-change-functions
                  #'qwen-companion-follow--first-changed nil t)))))

(defun qwen-companion-follow--first-changed (&rest _)
  "Suspend the modification time again after the first change.
The file has changed already, or is about to."
  (remove-hook 'after-change-functions #'qwen-companion-follow--first-changed t)
  (with-current-buffer (or (buffer-base-buffer) (current-buffer))
    (when qwen-companion-follow--link
      (qwen-companion-follow--suspend-modtime)
      (qwen-companion-follow--enqueue (list (current-buffer))))))

(defun qwen-companion-follow--saved-or-reverted ()
  "Note that the current buffer was saved or reverted."
  (qwen-companion-conflicts-update)
  (when-let* ((link (and (not (buffer-base-buffer)) qwen-companion-follow--link)))
    (qwen-companion-follow--cancel)
    (setf (qwen-companion-follow--link-time link) nil
          (qwen-companion-follow--link-stamp link) nil)
    (qwen-companion-follow--note-stamp)
    (qwen-companion-follow--mark nil)
    (if (qwen-companion-follow--link-expected link)
        ;; Keep the base: the CLI does not know the saved text.
        (qwen-companion-follow--suspend-modtime)
      (setf (qwen-companion-follow--link-base link) nil)
      (qwen-companion-follow--suspend-if-clean))))

(defun qwen-companion-follow--resolved (buffer)
  "Synchronise BUFFER, in which no conflict is left."
  (when (buffer-local-value 'qwen-companion-follow--link buffer)
    (qwen-companion-follow--enqueue (list buffer))))

(defun qwen-companion-follow--visited ()
  "Note that the current buffer visits a file."
  (unless qwen-companion-follow--link
    (qwen-companion-follow--enqueue (list (current-buffer)))))

(defun qwen-companion-follow--renamed ()
  "Note that the current buffer visits another file than before, or none."
  (unless (buffer-base-buffer)
    (when-let* ((link qwen-companion-follow--link))
      ;; The suspended time is that of the other file.
      (setf (qwen-companion-follow--link-time link) nil)
      (qwen-companion-follow--end))
    (when buffer-file-name
      (qwen-companion-follow--enqueue (list (current-buffer))))))

(defun qwen-companion-follow--leave ()
  "Stop following the current buffer; if it is indirect, only forget its copy."
  (if (buffer-base-buffer)
      (kill-local-variable 'qwen-companion-follow--link)
    (qwen-companion-follow--end)))

;;; The mode line

(defun qwen-companion-follow--shown-mark ()
  "Return the mark of the current buffer in the mode line, or nil."
  (if (buffer-local-value 'qwen-companion-follow-far-deleted
                          (or (buffer-base-buffer) (current-buffer)))
      'deleted
    (when-let* ((link (qwen-companion-follow--link-of)))
      (qwen-companion-follow--link-mark link))))

(defun qwen-companion-follow--mark (mark)
  "Show MARK in the current buffer's mode line; nothing if it is nil."
  (let ((link qwen-companion-follow--link))
    (unless (equal mark (qwen-companion-follow--link-mark link))
      (setf (qwen-companion-follow--link-mark link) mark)
      (force-mode-line-update))))

(defun qwen-companion-follow--mark-gone ()
  "Mark the current buffer as deleted or renamed unless its file is new."
  (unless (memql (qwen-companion-follow--recorded-time) '(0 -1))
    (let* ((mark (qwen-companion-follow--link-mark qwen-companion-follow--link))
           (watch (qwen-companion-follow--link-watch qwen-companion-follow--link))
           (new (or (and watch (qwen-companion-disk-new-name watch))
                    (and (stringp mark) mark))))
      (cond
       ((and new (file-exists-p new))
        (qwen-companion-follow--mark-renamed new))
       ((not (eq mark 'deleted))
        (qwen-companion-follow--mark 'deleted)
        (qwen-companion-follow--search))))))

(defun qwen-companion-follow--mark-renamed (new)
  "Mark the current buffer as renamed to NEW, and offer to visit that file."
  (unless (equal new (qwen-companion-follow--link-mark qwen-companion-follow--link))
    (qwen-companion-follow--mark new)
    (message "qwen-companion: %s was renamed to %s; M-x qwen-companion-follow-rename follows it"
             (buffer-name) (qwen-companion-untrusted-path new))))

(defun qwen-companion-follow--search ()
  "Search the root for the deleted file of the current buffer.
A file with the same inode number, time and size is the renamed one."
  (when-let* ((buffer (current-buffer))
              (stamp (qwen-companion-follow--link-stamp qwen-companion-follow--link))
              (file (expand-file-name buffer-file-truename))
              (root (cl-find-if (lambda (root) (string-prefix-p root file))
                                (cdr qwen-companion-follow--roots)))
              ;; A branch switch removes many files, and renames none.
              ((not qwen-companion-follow--search))
              ((qwen-companion-programs-find "find")))
    (setq qwen-companion-follow--search
          (qwen-companion-programs-start
           :name "qwen-companion-find"
           :command (list "find" root "-xdev" "-name" ".git" "-prune" "-o"
                          "-type" "f" "-inum" (number-to-string (nth 2 stamp))
                          "-print0")
           :connection-type 'pipe
           :noquery t
           :stderr (get-buffer-create " *qwen-companion find*" t)
           :filter (lambda (_process names)
                     (dolist (name (split-string names "\0" t))
                       (qwen-companion-follow--note-search-result buffer stamp name)))
           :sentinel (lambda (process _event)
                       (unless (process-live-p process)
                         (setq qwen-companion-follow--search nil)))))))

(defun qwen-companion-follow--note-search-result (buffer stamp name)
  "Mark BUFFER as renamed if the file NAME still has STAMP."
  (when (and (buffer-live-p buffer)
             (equal (seq-take stamp 3)
                    (seq-take (qwen-companion-disk-stamp name) 3)))
    (with-current-buffer buffer
      (when (and qwen-companion-follow--link
                 (eq 'deleted (qwen-companion-follow--link-mark
                               qwen-companion-follow--link)))
        (qwen-companion-follow--mark-renamed name)))))

(defun qwen-companion-follow-rename ()
  "Visit the renamed file of the current buffer under its new name.
Unsaved text stays unsaved."
  (interactive)
  (let* ((new (qwen-companion-follow--shown-mark))
         (other (and (stringp new) (find-buffer-visiting new))))
    (unless (stringp new)
      (user-error "The file of %s was not renamed, as far as Emacs knows" (buffer-name)))
    (when other
      (user-error "%s is already visited in %s" (qwen-companion-untrusted-path new)
                  (buffer-name other)))
    (with-current-buffer (or (buffer-base-buffer) (current-buffer))
      (let ((time (qwen-companion-follow--recorded-time)))
        (set-visited-file-name new t t)
        ;; Later changes of the file must be noticed.
        (set-visited-file-modtime time)))))

(defun qwen-companion-follow-lighter ()
  "Return a text for the mode line about the current buffer's file, or nil."
  (or (qwen-companion-conflicts-lighter)
      (pcase (qwen-companion-follow--shown-mark)
        ('deleted
         (propertize " deleted" 'face 'warning
                     'help-echo "The file is no longer on disk; saving creates it again"))
        ('changed
         (propertize " differs" 'face 'warning
                     'help-echo "The file has changed on disk; M-x revert-buffer shows it, M-x ediff-current-file compares"))
        ((and (pred stringp) name)
         (propertize " renamed" 'face 'warning
                     'help-echo (format "M-x qwen-companion-follow-rename visits the file where it is now: %s"
                                        (qwen-companion-untrusted-path name)))))))

;;; Expected writes, and commands

(defun qwen-companion-follow-expect (path)
  "Prepare the buffers visiting PATH for the write of an accepted proposal.
Undo that if no write is expected (`qwen-companion-disk-expected-p')."
  (let ((expected (qwen-companion-disk-expected-p path)))
    (dolist (buffer (qwen-companion-disk-buffers path))
      (with-current-buffer buffer
        (when (or expected qwen-companion-follow--link)
          (let ((link (qwen-companion-follow--make)))
            (setf (qwen-companion-follow--link-expected link) expected)
            (cond
             ((not expected)
              (unless (qwen-companion-follow--pending-p link)
                (qwen-companion-follow--clear-pending)
                (qwen-companion-follow--release-link)))
             ((buffer-modified-p)
              (qwen-companion-follow--find-base))
             ((verify-visited-file-modtime)
              (qwen-companion-follow--suspend-modtime)))))))))

(defun qwen-companion-follow-file (path)
  "Synchronise the buffers that visit the file PATH, and return them."
  (let ((buffers (qwen-companion-disk-buffers path)))
    (dolist (buffer buffers buffers)
      (with-current-buffer buffer
        (unless (and (verify-visited-file-modtime)
                     (not qwen-companion-follow--link))
          (qwen-companion-follow--make)
          (qwen-companion-follow--sync))))))

(defun qwen-companion-follow-now (path)
  "Synchronise the buffers that visit the file PATH, and wait for it.
Wait some seconds at most for each; return non-nil when all are done."
  (let ((qwen-companion-follow--saving t))
    (cl-every (lambda (buffer)
                (qwen-companion-follow--wait buffer qwen-companion-follow--command-wait)
                (not (qwen-companion-follow--waiting-p buffer)))
              (qwen-companion-follow-file path))))

(add-hook 'qwen-companion-disk-catch-up-functions #'qwen-companion-follow-now)

;;; On and off

(defconst qwen-companion-follow--hooks
  '((find-file-hook . qwen-companion-follow--visited)
    (after-set-visited-file-name-hook . qwen-companion-follow--renamed)
    (kill-buffer-hook . qwen-companion-follow--leave)
    (first-change-hook . qwen-companion-follow--first-change)
    (after-save-hook . qwen-companion-follow--saved-or-reverted)
    (after-revert-hook . qwen-companion-follow--saved-or-reverted)
    (qwen-companion-backend-connected-hook . qwen-companion-follow--retry)
    (qwen-companion-conflicts-resolved-functions . qwen-companion-follow--resolved)
    (qwen-companion-disk-expecting-functions . qwen-companion-follow-expect)
    (qwen-companion-disk-written-functions . qwen-companion-follow-file))
  "The hooks in use while the mode is on: (HOOK . FUNCTION).")

(defvar qwen-companion-follow--state 'off
  "The last state that determined which buffers follow: (ACTIVE . ROOTS).
The symbol `off' while the mode is off.")

(defun qwen-companion-follow-update (&rest _)
  "Update which buffers follow after a change of sessions, roots or options."
  (let ((state (cons (and (qwen-companion-follow--active-p) t)
                     (qwen-companion-roots-published))))
    (unless (or (equal state qwen-companion-follow--state)
                (eq 'off qwen-companion-follow--state))
      (setq qwen-companion-follow--state state
            qwen-companion-follow--queue
            (cl-remove-if-not #'buffer-file-name (buffer-list)))
      (qwen-companion-follow--go-on))))

(defun qwen-companion-follow--retry ()
  "Synchronise the buffers that could not be merged without a process."
  (qwen-companion-follow--enqueue
   (cl-remove-if-not
    (lambda (buffer)
      (when-let* ((link (buffer-local-value 'qwen-companion-follow--link buffer)))
        (eq 'changed (qwen-companion-follow--link-mark link))))
    (buffer-list))))

(defun qwen-companion-follow-enable ()
  "Start following writes to disk."
  (setq qwen-companion-follow--state nil)
  (qwen-companion-buffers-set-hooks qwen-companion-follow--hooks t))

(defun qwen-companion-follow-disable ()
  "Stop following and restore all buffers."
  (qwen-companion-buffers-set-hooks qwen-companion-follow--hooks nil)
  (dolist (buffer (buffer-list))
    (when (and (buffer-live-p buffer)
               (buffer-local-value 'qwen-companion-follow--link buffer))
      (with-current-buffer buffer
        (qwen-companion-follow--leave))))
  (mapc #'qwen-companion-follow--drop
        (copy-sequence qwen-companion-follow--requests))
  (when qwen-companion-follow--search
    (delete-process qwen-companion-follow--search))
  (qwen-companion-timers-cancel qwen-companion-follow--work-timer
                                qwen-companion-follow--poll-timer
                                qwen-companion-follow--vc-timer)
  (setq qwen-companion-follow--state 'off
        qwen-companion-follow--vc-buffers nil
        qwen-companion-follow--unpolled nil
        qwen-companion-follow--queue nil
        qwen-companion-follow--followed nil
        qwen-companion-follow--roots '(nil)))

(provide 'qwen-companion-follow)
;;; qwen-companion-follow.el ends here

;;; qwen-companion-follow-far.el --- Buffers of other places follow what a CLI writes  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; The Python process tells when a file at a place that a buffer visits has
;; been written, and has a copy of it here.  Its text is brought into the
;; buffer as one undo step, or merged with unsaved text, as
;; qwen-companion-follow.el does for files of this machine.
;;
;; Nothing here calls TRAMP: neither the lock nor the time of the file is
;; asked for while the text changes.

;;; Code:

(require 'subr-x)
(require 'vc-hooks)
(require 'qwen-companion-buffers)
(require 'qwen-companion-conflicts)
(require 'qwen-companion-disk)
(require 'qwen-companion-follow)
(require 'qwen-companion-merge)
(require 'qwen-companion-messages)

(defconst qwen-companion-follow-far--pause 0.1
  "Seconds until a buffer is looked at again that a command was using.")

(defvar-local qwen-companion-follow-far--base nil
  "The text of the file as it was told last, or nil.")
(put 'qwen-companion-follow-far--base 'permanent-local t)

(defvar-local qwen-companion-follow-far--held nil
  "The `place-file' message that waits until conflicts are resolved, or nil.")

(defvar-local qwen-companion-follow-far--cut nil
  "Timer after which a file that lacks most of its text counts as written, or nil.")

(defun qwen-companion-follow-far-on-file (payload)
  "Handle the `place-file' call: bring the file of PAYLOAD into its buffer."
  (when-let* ((qwen-companion-follow-writes)
              (buffer (get-file-buffer (qwen-companion-place-file-name payload))))
    (with-current-buffer buffer
      (qwen-companion-follow-far--mark
       (unless (qwen-companion-place-file-copy payload)
         (or (qwen-companion-place-file-moved payload) 'deleted))))
    (when (qwen-companion-place-file-copy payload)
      (with-current-buffer buffer
        ;; There was no file.
        (when (time-less-p (visited-file-modtime) 0)
          (qwen-companion-follow-far--uncache)))
      (qwen-companion-follow-far--look buffer payload)))
  nil)

(defun qwen-companion-follow-far-on-version (payload)
  "Handle the `place-version' call: note how git has the file of PAYLOAD.
That is what VC would ask TRAMP for.  It has to know that it is git's."
  (let* ((name (qwen-companion-place-version-name payload))
         (branch (qwen-companion-place-version-branch payload))
         (buffer (get-file-buffer name)))
    (when (and buffer (eq 'Git (vc-file-getprop name 'vc-backend)))
      (with-current-buffer buffer
        (vc-file-setprop name 'vc-state (qwen-companion-place-version-state payload))
        (vc-file-setprop name 'vc-working-revision (qwen-companion-place-version-revision payload))
        (vc-file-setprop name 'vc-git-symbolic-ref branch)
        ;; Without a branch, VC would ask.
        (when branch
          ;; Nor does root ask whether the file can be written.
          (let ((buffer-read-only t))
            (vc-mode-line name 'Git))))))
  nil)

(defun qwen-companion-follow-far--uncache ()
  "Have TRAMP forget that the directory of the current file was not there.
It would ask whether to make it when the buffer is saved."
  (let ((directory (file-name-directory buffer-file-name)))
    (when-let* ((handler (find-file-name-handler directory 'dired-uncache)))
      (funcall handler 'dired-uncache directory))))

(defun qwen-companion-follow-far--mark (mark)
  "Set MARK as that of the current buffer in the mode line; nil means none."
  (unless (equal mark qwen-companion-follow-far-mark)
    (setq qwen-companion-follow-far-mark mark)
    (force-mode-line-update)
    (when (stringp mark)
      (qwen-companion-follow-say-renamed mark))))

(defun qwen-companion-follow-far--cut-p (text)
  "Return non-nil when TEXT, that of the file now, lacks most of what it had.
A program may have emptied the file to write it again in pieces.  It
counts as cut until it ends as it did."
  (let ((old (or qwen-companion-follow-far--base (qwen-companion-buffers-text))))
    (and (or qwen-companion-follow-far--cut
             (< (* 4 (length text)) (* 3 (length old))))
         (not (string-suffix-p (substring old (max 0 (- (length old) 80))) text)))))

(defun qwen-companion-follow-far--look (buffer payload &optional whole)
  "Compare BUFFER with the copy that PAYLOAD names, and follow it.
WHOLE says that the file counts as written."
  (qwen-companion-buffers-when-live buffer
    (let ((source (generate-new-buffer " *qwen-companion far*" t))
          (explicit (car buffer-file-coding-system-explicit))
          (time (seconds-to-time (/ (qwen-companion-place-file-time payload) 1000.0)))
          coding text)
      (with-current-buffer source
        (setq coding (qwen-companion-disk-insert
                      (qwen-companion-place-file-copy payload) explicit)
              text (qwen-companion-buffers-text)))
      (setq whole (or whole (not (qwen-companion-follow-far--cut-p text))))
      (when qwen-companion-follow-far--cut
        (cancel-timer qwen-companion-follow-far--cut)
        (setq qwen-companion-follow-far--cut nil))
      (cond
       ((not whole)
        (setq qwen-companion-follow-far--cut
              (run-at-time qwen-companion-disk-idle-writer nil
                           #'qwen-companion-follow-far--look buffer payload t))
        (kill-buffer source))
       ((or find-file-literally (not enable-multibyte-characters) buffer-file-format)
        (kill-buffer source))
       ((qwen-companion-conflicts-p)
        (setq qwen-companion-follow-far--held payload)
        (kill-buffer source))
       ((qwen-companion-disk-same-text-p source)
        (qwen-companion-follow-far--adopt text time nil)
        (kill-buffer source))
       ((or (not (buffer-modified-p)) qwen-companion-follow-far--base)
        (qwen-companion-follow-far--ask payload source coding text time))
       (t
        (kill-buffer source)
        (if (qwen-companion-follow-far--visited-p time)
            (setq qwen-companion-follow-far--base text)
          (message "qwen-companion: %s changed on disk, and %s has unsaved text; M-x ediff-current-file compares them"
                   (abbreviate-file-name buffer-file-name) (buffer-name))))))))

(defun qwen-companion-follow-far--visited-p (time)
  "Return non-nil when the current buffer started from the file of TIME.
TRAMP knows times of files by the second."
  (let ((known (visited-file-modtime)))
    (and (not (integerp known))
         (< (abs (float-time (time-subtract known time))) 2))))

(defun qwen-companion-follow-far--ask (payload source coding text time)
  "Ask for the edits that bring SOURCE into the current buffer.
PAYLOAD is the message about it; TEXT is what SOURCE has, read as CODING,
and TIME that of the file."
  (let ((buffer (current-buffer))
        (base (and (buffer-modified-p) qwen-companion-follow-far--base))
        (tick (buffer-chars-modified-tick)))
    (qwen-companion-merge-texts
     base buffer source qwen-companion-conflicts-labels
     (lambda (merged)
       (if (and (buffer-live-p buffer)
                (with-current-buffer buffer
                  (or this-command (/= tick (buffer-chars-modified-tick)))))
           (run-at-time qwen-companion-follow-far--pause nil
                        #'qwen-companion-follow-far--look buffer payload)
         (when (and merged (buffer-live-p buffer))
           (with-current-buffer buffer
             (qwen-companion-follow-far--apply merged base source coding)
             (qwen-companion-follow-far--adopt text time base))))
       (kill-buffer source)))))

(defun qwen-companion-follow-far--apply (merged base source coding)
  "Bring SOURCE, read as CODING, into the current buffer by MERGED.
BASE is the text from which unsaved text started, nil without any."
  (let ((mine (and base (qwen-companion-buffers-text)))
        (buffer-file-truename nil)
        (create-lockfiles nil))
    (clear-visited-file-modtime)
    (restore-buffer-modified-p t)
    (qwen-companion-merge-apply merged source)
    (qwen-companion-disk-adopt-coding coding)
    (when (> (qwen-companion-merge-result-conflicts merged) 0)
      (qwen-companion-conflicts-begin base mine (qwen-companion-buffers-text)))))

(defun qwen-companion-follow-far--adopt (text time unsaved)
  "Note that the file of the current buffer has TEXT, written at TIME.
Without UNSAVED, the buffer has it too."
  (setq qwen-companion-follow-far--base text
        qwen-companion-follow-far--held nil)
  (set-visited-file-modtime time)
  (unless (and unsaved (not (equal text (qwen-companion-buffers-text))))
    (let ((buffer-file-truename nil))
      (set-buffer-modified-p nil)))
  (when unsaved
    (message "qwen-companion: merged the change on disk into %s" (buffer-name))))

(defun qwen-companion-follow-far--resolved (buffer)
  "Follow what was written while BUFFER had conflicts."
  (when-let* ((payload (buffer-local-value 'qwen-companion-follow-far--held buffer)))
    (qwen-companion-follow-far--look buffer payload)))

(add-hook 'qwen-companion-conflicts-resolved-functions #'qwen-companion-follow-far--resolved)

(provide 'qwen-companion-follow-far)
;;; qwen-companion-follow-far.el ends here

;;; qwen-companion-follow-far.el --- Remote buffers follow their files  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; When a visited remote file was written, the Python process sends a message
;; with a local copy.  Its text is put into the buffer as one undo step, or
;; merged with unsaved text, as qwen-companion-follow.el does for local files.
;;
;; Nothing here calls TRAMP: changes of the text check neither the lock nor the
;; time of the file.

;;; Code:

(require 'subr-x)
(require 'qwen-companion-buffers)
(require 'qwen-companion-conflicts)
(require 'qwen-companion-disk)
(require 'qwen-companion-follow)
(require 'qwen-companion-merge)
(require 'qwen-companion-messages)
(require 'qwen-companion-places)

(defconst qwen-companion-follow-far--pause 0.1
  "Seconds until a buffer that a command was using is checked again.")

(defvar-local qwen-companion-follow-far--base nil
  "The last reported text of the file, or nil.")
(put 'qwen-companion-follow-far--base 'permanent-local t)

(defvar-local qwen-companion-follow-far--held nil
  "The `place-file' message postponed until conflicts are resolved, or nil.")

(defvar-local qwen-companion-follow-far--cut nil
  "Timer after which a truncated file counts as written, or nil.")

(defun qwen-companion-follow-far-on-file (payload)
  "Handle the `place-file' call: bring the file of PAYLOAD into its buffer."
  (when-let* ((qwen-companion-follow-writes)
              (buffer (qwen-companion-places-visiting (qwen-companion-place-file-name payload))))
    (with-current-buffer buffer
      (setq qwen-companion-follow-far-deleted (not (qwen-companion-place-file-copy payload)))
      (force-mode-line-update))
    (when (qwen-companion-place-file-copy payload)
      (with-current-buffer buffer
        ;; There was no file.
        (when (time-less-p (visited-file-modtime) 0)
          (qwen-companion-follow-far--uncache)))
      (qwen-companion-follow-far--sync buffer payload)))
  nil)

(defun qwen-companion-follow-far--uncache ()
  "Make TRAMP forget that the directory of the current file did not exist.
Otherwise it would offer to create it when the buffer is saved."
  (let ((directory (file-name-directory buffer-file-name)))
    (when-let* ((handler (find-file-name-handler directory 'dired-uncache)))
      (funcall handler 'dired-uncache directory))))

(defun qwen-companion-follow-far--cut-p (text)
  "Return non-nil when TEXT, the file's new text, lacks most of the old one.
A program may have truncated the file to rewrite it in pieces.  The file
counts as truncated until its end is as before."
  (let ((old (or qwen-companion-follow-far--base (qwen-companion-buffers-text))))
    (and (or qwen-companion-follow-far--cut
             (< (* 4 (length text)) (* 3 (length old))))
         (not (string-suffix-p (substring old (max 0 (- (length old) 80))) text)))))

(defun qwen-companion-follow-far--sync (buffer payload &optional whole)
  "Compare BUFFER with the copy named in PAYLOAD, and follow it.
With WHOLE non-nil, the file counts as completely written."
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
                           #'qwen-companion-follow-far--sync buffer payload t))
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
  "Return non-nil if the current buffer visited the file as of TIME.
File times of TRAMP are in whole seconds."
  (let ((known (visited-file-modtime)))
    (and (not (integerp known))
         (< (abs (float-time (time-subtract known time))) 2))))

(defun qwen-companion-follow-far--ask (payload source coding text time)
  "Request the edits that turn the current buffer into SOURCE.
PAYLOAD is the message about the file; TEXT is the text of SOURCE, read as
CODING, and TIME the file's modification time."
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
                        #'qwen-companion-follow-far--sync buffer payload)
         (when (and merged (buffer-live-p buffer))
           (with-current-buffer buffer
             (qwen-companion-follow-far--apply merged base source coding)
             (qwen-companion-follow-far--adopt text time base))))
       (kill-buffer source)))))

(defun qwen-companion-follow-far--apply (merged base source coding)
  "Apply MERGED to the current buffer to turn it into SOURCE, read as CODING.
BASE is the text from which unsaved text started, or nil."
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
  "Record TEXT, written at TIME, as the text of the current buffer's file.
With UNSAVED nil, the buffer has the same text."
  (setq qwen-companion-follow-far--base text
        qwen-companion-follow-far--held nil)
  (set-visited-file-modtime time)
  (unless (and unsaved (not (equal text (qwen-companion-buffers-text))))
    (let ((buffer-file-truename nil))
      (set-buffer-modified-p nil)))
  (when unsaved
    (message "qwen-companion: merged the change on disk into %s" (buffer-name))))

(defun qwen-companion-follow-far--resolved (buffer)
  "Follow the writes that came while BUFFER had conflicts."
  (when-let* ((payload (buffer-local-value 'qwen-companion-follow-far--held buffer)))
    (qwen-companion-follow-far--sync buffer payload)))

(add-hook 'qwen-companion-conflicts-resolved-functions #'qwen-companion-follow-far--resolved)

(provide 'qwen-companion-follow-far)
;;; qwen-companion-follow-far.el ends here

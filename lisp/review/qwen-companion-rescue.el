;;; qwen-companion-rescue.el --- Texts rescued from unfinished reviews  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; A review can end without the CLI writing its text: the CLI has
;; disconnected, was answered in its terminal, or has proposed something
;; newer.  An edited text then stays in a buffer.  Commands put it into the
;; buffer visiting the file, or compare it with the file on disk.  Nothing
;; here writes to disk.  If the CLI writes the text after all, the buffer is
;; killed.

;;; Code:

(require 'cl-lib)
(require 'subr-x)
(require 'qwen-companion-buffers)
(require 'qwen-companion-compare)
(require 'qwen-companion-completion)
(require 'qwen-companion-disk)
(require 'qwen-companion-drafts)
(require 'qwen-companion-header)
(require 'qwen-companion-places)
(require 'qwen-companion-untrusted)

(cl-defstruct (qwen-companion-rescue (:copier nil))
  "A text rescued from a review.
PATH is its file, NAME its display name, and REASON a string, the reason
for the rescue.
STAMP is the state of the file when the text was proposed, see
`qwen-companion-disk-stamp'.  DIGEST is the digest of the text before the
user's edits, see `qwen-companion-disk-digest'.  LINE-END ends a line of
the text in the file.  ENDS-LINES is non-nil when the CLI may add a
newline at its end.  AWAITED is non-nil while the CLI may be about to
write it.  WATCH is a watch on the file's directory for a late write, or
nil."
  path name reason stamp digest line-end ends-lines awaited watch)

(defvar-local qwen-companion-rescue--current nil
  "The `qwen-companion-rescue' of the current buffer, or nil.")

(qwen-companion-header-define-keys qwen-companion-kept-mode "Kept Text"
  ("C-c C-c" qwen-companion-kept-apply "Put into the File's Buffer" "put into the file's buffer")
  ("C-c C-k" qwen-companion-kept-discard "Discard" "discard")
  ("C-c C-d" qwen-companion-kept-difference "Compare" "compare"))

(define-minor-mode qwen-companion-kept-mode
  "Minor mode of a buffer with a rescued text.

\\{qwen-companion-kept-mode-map}"
  :interactive nil
  :lighter nil
  (setq header-line-format
        (and qwen-companion-kept-mode '((:eval (qwen-companion-rescue--header))))))

(defun qwen-companion-rescue--header ()
  "Return the header line: file, reason, keys."
  (qwen-companion-header-line
   (qwen-companion-rescue-name qwen-companion-rescue--current)
   `((nil . ,(let ((reason (qwen-companion-rescue-reason qwen-companion-rescue--current)))
               ;; A message gave the rest when the text was rescued.
               (propertize (car (split-string reason ", \\| before ")) 'face 'warning
                           'help-echo reason)))
     ,@(qwen-companion-header-mode-keys 'qwen-companion-kept-mode))))

(defun qwen-companion-rescue-adopt (buffer rescue)
  "Make BUFFER the buffer of RESCUE, a `qwen-companion-rescue', with a message."
  (with-current-buffer buffer
    (setq buffer-read-only nil
          ;; Emacs asks about it before it exits.
          buffer-offer-save t
          qwen-companion-rescue--current rescue)
    (set-buffer-modified-p t)
    (qwen-companion-drafts-keep
     'file (qwen-companion-places-name (qwen-companion-rescue-path rescue)))
    (rename-buffer (format "*qwen-companion kept: %s*" (qwen-companion-rescue-name rescue)) t)
    (qwen-companion-kept-mode 1)
    (message "qwen-companion: %s; the proposed text is kept in %s"
             (qwen-companion-rescue-reason rescue) (buffer-name))))

(defun qwen-companion-rescue-buffers ()
  "Return the buffers with rescued texts."
  (cl-remove-if-not
   (lambda (buffer) (buffer-local-value 'qwen-companion-rescue--current buffer))
   (buffer-list)))

(defun qwen-companion-rescue--path (buffer)
  "Return the file of the rescued text in BUFFER."
  (qwen-companion-rescue-path
   (buffer-local-value 'qwen-companion-rescue--current buffer)))

;;; Late writes

(defun qwen-companion-rescue-file-written (path)
  "Update the rescued texts of the file PATH, which a CLI has written.
Kill the buffer of a text that the file now holds.  If the file holds
the proposed text, tell the user that the edits can be applied."
  (dolist (buffer (qwen-companion-rescue-buffers))
    (when (equal path (qwen-companion-rescue--path buffer))
      (let ((rescue (buffer-local-value 'qwen-companion-rescue--current buffer)))
        (cond
         ((qwen-companion-rescue--on-disk-p buffer)
          (message (if (qwen-companion-rescue-watch rescue)
                       "qwen-companion: %s holds the accepted text now"
                     "qwen-companion: %s holds your edits")
                   (qwen-companion-untrusted-path path))
          (kill-buffer buffer))
         ((and (qwen-companion-rescue-awaited rescue)
               (equal (qwen-companion-disk-digest path)
                      (qwen-companion-rescue-digest rescue)))
          (qwen-companion-rescue--report-missing-edits rescue)))))))

(defun qwen-companion-rescue-expect-late-write (buffer)
  "Watch for the CLI to write the rescued text in BUFFER after all.
It may still await an answer in its terminal."
  (let* ((rescue (buffer-local-value 'qwen-companion-rescue--current buffer))
         (path (qwen-companion-rescue-path rescue))
         (stamp (qwen-companion-disk-stamp path)))
    (setf (qwen-companion-rescue-watch rescue)
          (qwen-companion-disk-watch
           path
           (lambda ()
             ;; The watch reports other files of the directory too.
             (unless (equal stamp (setq stamp (qwen-companion-disk-stamp path)))
               (qwen-companion-rescue-file-written path)))))
    (with-current-buffer buffer
      (add-hook 'kill-buffer-hook #'qwen-companion-rescue--unwatch nil t))))

(defun qwen-companion-rescue--unwatch ()
  "Stop waiting for a write of the rescued text in the current buffer."
  (when-let* ((watch (qwen-companion-rescue-watch qwen-companion-rescue--current)))
    (setf (qwen-companion-rescue-watch qwen-companion-rescue--current) nil)
    (qwen-companion-disk-unwatch watch)))

(defun qwen-companion-rescue-stop-waiting ()
  "Stop waiting for any CLI to write a rescued text."
  (dolist (buffer (qwen-companion-rescue-buffers))
    (with-current-buffer buffer
      (setf (qwen-companion-rescue-awaited qwen-companion-rescue--current) nil)
      (qwen-companion-rescue--unwatch))))

(defun qwen-companion-rescue-write-ended (buffer result)
  "Stop waiting for the CLI to write the rescued text in BUFFER.
RESULT says how the wait ended, see `qwen-companion-disk-expect'."
  (when-let* (((buffer-live-p buffer))
              (rescue (buffer-local-value 'qwen-companion-rescue--current buffer))
              ((qwen-companion-rescue-awaited rescue)))
    (if (eq result 'changed)
        (qwen-companion-rescue--report-missing-edits rescue)
      (setf (qwen-companion-rescue-awaited rescue) nil))))

(defun qwen-companion-rescue--report-missing-edits (rescue)
  "Tell the user once that the CLI has not written the edits of RESCUE."
  (setf (qwen-companion-rescue-awaited rescue) nil)
  (message "qwen-companion: %s was written without your edits; M-x qwen-companion-kept-apply applies them"
           (qwen-companion-untrusted-path (qwen-companion-rescue-path rescue))))

(defun qwen-companion-rescue--on-disk-p (buffer)
  "Return non-nil when the rescued text in BUFFER is in its file."
  (let* ((rescue (buffer-local-value 'qwen-companion-rescue--current buffer))
         (text (qwen-companion-disk-text
                buffer (qwen-companion-rescue-line-end rescue))))
    (or (qwen-companion-disk-holds-p (qwen-companion-rescue-path rescue) text)
        (and (qwen-companion-rescue-ends-lines rescue)
             (qwen-companion-disk-holds-p (qwen-companion-rescue-path rescue)
                                          (qwen-companion-disk-end-line text))))))

;;; Commands

(defun qwen-companion-rescue--candidate (buffer)
  "Return the buffer with the rescued text on which a command acts.
That is BUFFER if non-nil, else the current one, else the only one for
the file visited here, else the only one.  Signal a `user-error' when
there is none or several."
  (let* ((all (qwen-companion-rescue-buffers))
         (here (and buffer-file-name
                    (cl-remove (current-buffer) all
                               :test-not #'eq
                               :key (lambda (rescued)
                                      (qwen-companion-disk-visiting
                                       (qwen-companion-rescue--path rescued))))))
         (candidates (cond (buffer (list (get-buffer buffer)))
                           (qwen-companion-rescue--current (list (current-buffer)))
                           (t (or here all)))))
    (cond
     ((or (null candidates) (not (memq (car candidates) all)))
      (user-error "No rescued text%s"
                  (if buffer (format " in %s" buffer) "")))
     ((cdr candidates)
      (user-error "%d texts are rescued; go to the buffer of one: %s" (length candidates)
                  (mapconcat #'buffer-name candidates ", ")))
     (t (car candidates)))))

(defun qwen-companion-rescue--read (verb)
  "Ask which rescued text to VERB, a string, if there are several."
  (let ((all (mapcar #'buffer-name (qwen-companion-rescue-buffers))))
    (when (and (cdr all)
               (not qwen-companion-rescue--current)
               (not buffer-file-name))
      (completing-read (format "%s which text: " verb)
                       (qwen-companion-completion-table all 'buffer)
                       nil t))))

;;;###autoload
(defun qwen-companion-kept-apply (&optional buffer)
  "Put a rescued text into the buffer that visits its file.
One `undo' reverts that; the buffer is not saved.  If the file has
changes besides the proposed ones, show both texts in Ediff instead.

Act on the rescued text of the current buffer.  In other buffers, act on the
only one of the visited file, else on the only one.  BUFFER names another."
  (interactive (list (qwen-companion-rescue--read "Apply")))
  (let* ((rescued (qwen-companion-rescue--candidate buffer))
         (rescue (buffer-local-value 'qwen-companion-rescue--current rescued))
         (path (qwen-companion-rescue-path rescue))
         (stamp (qwen-companion-disk-stamp path)))
    (when (and (qwen-companion-disk-expected-p path)
               (equal stamp (qwen-companion-rescue-stamp rescue)))
      (user-error "The CLI may be about to write %s; try again in a few seconds"
                  (qwen-companion-untrusted-path path)))
    (unless (run-hook-with-args-until-failure
             'qwen-companion-disk-catch-up-functions path)
      (user-error "%s has just changed on disk; try again in a moment"
                  (qwen-companion-untrusted-path path)))
    (let ((target (qwen-companion-disk-visit path)))
      (if (and (not (buffer-modified-p target))
               (verify-visited-file-modtime target)
               (or (equal stamp (qwen-companion-rescue-stamp rescue))
                   (equal (qwen-companion-disk-digest path)
                          (qwen-companion-rescue-digest rescue))))
          (qwen-companion-rescue--replace-text rescued target)
        (qwen-companion-rescue--show-in-ediff rescued target)))))

(defun qwen-companion-rescue--show-in-ediff (rescued target)
  "Show TARGET, the buffer of a file, and the buffer RESCUED in Ediff.
If Ediff fails, signal a `user-error'."
  (let ((file (qwen-companion-untrusted-path (qwen-companion-rescue--path rescued))))
    (condition-case err
        (qwen-companion-compare-sides target rescued nil)
      (error
       (user-error
        (substitute-command-keys
         "%s has other changes too, and Ediff failed (%s); \\[qwen-companion-kept-difference] shows the differences")
        file (error-message-string err))))
    (message "qwen-companion: %s has other changes too; copy the ones you want" file)))

(defun qwen-companion-rescue--replace-text (rescued target)
  "Replace the text of the buffer TARGET by RESCUED's; show TARGET.
Kill RESCUED."
  (let ((line-end (qwen-companion-rescue-line-end
                   (buffer-local-value 'qwen-companion-rescue--current rescued))))
    (with-current-buffer rescued (widen))
    (with-current-buffer target
      (when (and (equal line-end "\r\n") (zerop (buffer-size)))
        (set-buffer-file-coding-system 'dos))
      (save-restriction
        (widen)
        (undo-boundary)
        (replace-buffer-contents rescued 0.1)
        (undo-boundary))
      ;; Make an empty text of a missing file savable too.
      (set-buffer-modified-p t)))
  (kill-buffer rescued)
  (pop-to-buffer target)
  (message "qwen-companion: applied to this buffer, not saved yet"))

(defun qwen-companion-kept-discard (&optional buffer)
  "Kill the buffer of a rescued text.
BUFFER is as in `qwen-companion-kept-apply'."
  (interactive (list (qwen-companion-rescue--read "Discard")))
  (kill-buffer (qwen-companion-rescue--candidate buffer)))

;;;###autoload
(defun qwen-companion-kept-difference (&optional buffer)
  "Show how the file on disk differs from a rescued text.
BUFFER is as in `qwen-companion-kept-apply'."
  (interactive (list (qwen-companion-rescue--read "Compare")))
  (qwen-companion-rescue-compare (qwen-companion-rescue--candidate buffer)
                               #'display-buffer))

(defun qwen-companion-rescue-compare (buffer display)
  "Compare the file on disk with the rescued text in BUFFER.
Call DISPLAY with a buffer that shows how they differ, if they do."
  (let* ((path (qwen-companion-rescue--path buffer))
         (file (qwen-companion-untrusted-path path)))
    (condition-case err
        (qwen-companion-compare-with-disk
         (qwen-companion-disk-text buffer "\n") path
         (lambda (difference)
           (if (null difference)
               (message "qwen-companion: %s already has that text" file)
             (funcall display difference)
             (message "qwen-companion: the differences of %s are in %s"
                      file (buffer-name difference)))))
      ;; For instance, the disk is full.
      (file-error
       (message "qwen-companion: cannot compare %s with %s: %s"
                (buffer-name buffer) file (error-message-string err))))))

(provide 'qwen-companion-rescue)
;;; qwen-companion-rescue.el ends here

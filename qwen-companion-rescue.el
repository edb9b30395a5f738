;;; qwen-companion-rescue.el --- Texts of reviews that ended otherwise  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;; This program is free software; you can redistribute it and/or modify
;; it under the terms of the GNU General Public License as published by
;; the Free Software Foundation, either version 3 of the License, or
;; (at your option) any later version.

;; This program is distributed in the hope that it will be useful,
;; but WITHOUT ANY WARRANTY; without even the implied warranty of
;; MERCHANTABILITY or FITNESS FOR A PARTICULAR PURPOSE.  See the
;; GNU General Public License for more details.

;; You should have received a copy of the GNU General Public License
;; along with this program.  If not, see <https://www.gnu.org/licenses/>.

;;; Commentary:

;; A review can end without the CLI writing what is in it: the CLI has
;; gone, or was answered in its terminal, or has proposed something newer.
;; The text then stays in a buffer that says so, with commands that put
;; it into the buffer visiting the file and that compare it with the file
;; on disk.  Nothing is written to disk here,
;; and nothing happens by itself but this: a kept text that the CLI turns
;; out to have written needs no keeping.

;;; Code:

(require 'cl-lib)
(require 'subr-x)
(require 'qwen-companion-compare)
(require 'qwen-companion-disk)
(require 'qwen-companion-untrusted)

(cl-defstruct (qwen-companion-rescue (:copier nil))
  "What a kept text is about.
PATH is the file and REASON why the text was kept, a string.  STAMP is
that of the file when the text was proposed, see
`qwen-companion-disk-stamp', and DIGEST that of the text before the
user edited it, see `qwen-companion-disk-digest'.  LINE-END ends a line
of the text in the file; with ENDS-LINES non-nil the CLI may end the
last one too.  AWAITED is non-nil while the CLI may be about to write, and
WATCH tells of changes in the directory of the file if it may be late."
  path reason stamp digest line-end ends-lines awaited watch)

(defvar-local qwen-companion-rescue--current nil
  "What the text in the current buffer is about, a `qwen-companion-rescue'.")

(defvar qwen-companion-kept-mode-map
  (let ((map (make-sparse-keymap)))
    (define-key map (kbd "C-c C-c") #'qwen-companion-kept-apply)
    (define-key map (kbd "C-c C-k") #'qwen-companion-kept-discard)
    (define-key map (kbd "C-c C-d") #'qwen-companion-kept-difference)
    map)
  "Keys in a buffer with a kept text.")

(define-minor-mode qwen-companion-kept-mode
  "Minor mode of a buffer with a kept text.

\\{qwen-companion-kept-mode-map}"
  :interactive nil
  :lighter nil
  (setq header-line-format
        (and qwen-companion-kept-mode (qwen-companion-rescue--header))))

(defun qwen-companion-rescue--header ()
  "Return the header line for the current buffer with its kept text."
  (let ((name (qwen-companion-untrusted-path
               (qwen-companion-rescue-path qwen-companion-rescue--current))))
    (string-replace
     "%" "%%"
     (format " %s put it into the file's buffer  %s discard  %s compare  %s: %s"
             (substitute-command-keys "\\[qwen-companion-kept-apply]")
             (substitute-command-keys "\\[qwen-companion-kept-discard]")
             (substitute-command-keys "\\[qwen-companion-kept-difference]")
             name
             (qwen-companion-rescue-reason qwen-companion-rescue--current)))))

(defun qwen-companion-rescue-adopt (buffer about)
  "Keep the text in BUFFER, which is ABOUT a `qwen-companion-rescue'.
Tell the user."
  (with-current-buffer buffer
    (setq buffer-read-only nil
          ;; Emacs asks about it before it exits.
          buffer-offer-save t
          qwen-companion-rescue--current about)
    (set-buffer-modified-p t)
    (rename-buffer
     (format "*qwen-companion kept: %s*"
             (file-name-nondirectory
              (qwen-companion-untrusted-path (qwen-companion-rescue-path about))))
     t)
    (qwen-companion-kept-mode 1)
    (message "qwen-companion: %s; the proposed text is kept in %s"
             (qwen-companion-rescue-reason about) (buffer-name))))

(defun qwen-companion-rescue-buffers ()
  "Return the buffers with kept texts."
  (cl-remove-if-not
   (lambda (buffer) (buffer-local-value 'qwen-companion-rescue--current buffer))
   (buffer-list)))

(defun qwen-companion-rescue--path (buffer)
  "Return the file that the kept text in BUFFER is about."
  (qwen-companion-rescue-path
   (buffer-local-value 'qwen-companion-rescue--current buffer)))

;;; When the CLI has written

(defun qwen-companion-rescue-file-written (path)
  "Look at the texts kept for PATH: a CLI has written that file.
One that is what the file now holds goes.  If the file holds what the
CLI had proposed, the user is told that the edits can now be applied."
  (dolist (buffer (qwen-companion-rescue-buffers))
    (when (equal path (qwen-companion-rescue--path buffer))
      (let ((about (buffer-local-value 'qwen-companion-rescue--current buffer)))
        (cond
         ((qwen-companion-rescue--on-disk-p buffer)
          (message (if (qwen-companion-rescue-watch about)
                       "qwen-companion: %s holds the accepted text now"
                     "qwen-companion: %s holds your edits")
                   (qwen-companion-untrusted-path path))
          (kill-buffer buffer))
         ((and (qwen-companion-rescue-awaited about)
               (equal (qwen-companion-disk-digest path)
                      (qwen-companion-rescue-digest about)))
          (qwen-companion-rescue--report-missing-edits about)))))))

(defun qwen-companion-rescue-expect-late-write (buffer)
  "Let the text kept in BUFFER go when the CLI writes it after all.
It may wait for an answer that only its terminal knows of."
  (let* ((about (buffer-local-value 'qwen-companion-rescue--current buffer))
         (path (qwen-companion-rescue-path about))
         (stamp (qwen-companion-disk-stamp path)))
    (setf (qwen-companion-rescue-watch about)
          (qwen-companion-disk-watch
           path
           (lambda ()
             ;; Other files of the directory are told of too.
             (unless (equal stamp (setq stamp (qwen-companion-disk-stamp path)))
               (qwen-companion-rescue-file-written path)))))
    (with-current-buffer buffer
      (add-hook 'kill-buffer-hook #'qwen-companion-rescue--unwatch nil t))))

(defun qwen-companion-rescue--unwatch ()
  "Watch no longer for the text kept in the current buffer."
  (when-let* ((watch (qwen-companion-rescue-watch qwen-companion-rescue--current)))
    (setf (qwen-companion-rescue-watch qwen-companion-rescue--current) nil)
    (qwen-companion-disk-unwatch watch)))

(defun qwen-companion-rescue-stop-waiting ()
  "Wait for no CLI to write a kept text: the companion stops."
  (dolist (buffer (qwen-companion-rescue-buffers))
    (with-current-buffer buffer
      (setf (qwen-companion-rescue-awaited qwen-companion-rescue--current) nil)
      (qwen-companion-rescue--unwatch))))

(defun qwen-companion-rescue-write-ended (buffer result)
  "Stop waiting for the CLI of the text kept in BUFFER, if it still is.
RESULT tells what has become of the file, see `qwen-companion-disk-expect'."
  (when-let* (((buffer-live-p buffer))
              (about (buffer-local-value 'qwen-companion-rescue--current buffer))
              ((qwen-companion-rescue-awaited about)))
    (if (eq result 'changed)
        (qwen-companion-rescue--report-missing-edits about)
      (setf (qwen-companion-rescue-awaited about) nil))))

(defun qwen-companion-rescue--report-missing-edits (about)
  "Say once that the text ABOUT which this is was not written."
  (setf (qwen-companion-rescue-awaited about) nil)
  (message "qwen-companion: %s is written, your edits are not in it; M-x qwen-companion-kept-apply puts them on top"
           (qwen-companion-untrusted-path (qwen-companion-rescue-path about))))

(defun qwen-companion-rescue--on-disk-p (buffer)
  "Return non-nil when the text kept in BUFFER is in its file."
  (let ((about (buffer-local-value 'qwen-companion-rescue--current buffer))
        (text (qwen-companion-rescue--text buffer)))
    (or (qwen-companion-disk-holds-p (qwen-companion-rescue-path about) text)
        (and (qwen-companion-rescue-ends-lines about)
             (qwen-companion-disk-holds-p (qwen-companion-rescue-path about)
                                          (qwen-companion-disk-end-line text))))))

(defun qwen-companion-rescue--text (buffer)
  "Return the kept text in BUFFER as it would be in the file."
  (qwen-companion-disk-text
   buffer
   (qwen-companion-rescue-line-end
    (buffer-local-value 'qwen-companion-rescue--current buffer))))

;;; Commands

(defun qwen-companion-rescue--find (buffer)
  "Return BUFFER, or the buffer with the kept text that a command is for.
That is the current one, else the only one for the file that is visited
here, else the only one.  Signal a `user-error' when there is none or
several."
  (let* ((all (qwen-companion-rescue-buffers))
         (here (and buffer-file-name
                    (cl-remove (file-truename buffer-file-name) all
                               :test-not #'equal
                               :key (lambda (kept)
                                      (file-truename
                                       (qwen-companion-rescue--path kept))))))
         (candidates (cond (buffer (list (get-buffer buffer)))
                           (qwen-companion-rescue--current (list (current-buffer)))
                           (t (or here all)))))
    (cond
     ((or (null candidates) (not (memq (car candidates) all)))
      (user-error "No text of a review is kept%s"
                  (if buffer (format " in %s" buffer) "")))
     ((cdr candidates)
      (user-error "Which one?  %d texts are kept: %s" (length candidates)
                  (mapconcat #'buffer-name candidates ", ")))
     (t (car candidates)))))

(defun qwen-companion-rescue--read (verb)
  "Return the kept text that the user wants to VERB: ask if it is ambiguous."
  (let ((all (mapcar #'buffer-name (qwen-companion-rescue-buffers))))
    (when (and (cdr all)
               (not qwen-companion-rescue--current)
               (not buffer-file-name))
      (completing-read (format "%s which text: " verb) all nil t))))

;;;###autoload
(defun qwen-companion-kept-apply (&optional buffer)
  "Put a kept text into the buffer that visits its file.
That is one change to undo, and saving it is up to you.  If the file
has other changes than the ones proposed, Ediff shows both instead.

The text is that of the current buffer, else the only one for the
file visited here, else the only one; BUFFER names another one."
  (interactive (list (qwen-companion-rescue--read "Apply")))
  (let* ((kept (qwen-companion-rescue--find buffer))
         (about (buffer-local-value 'qwen-companion-rescue--current kept))
         (path (qwen-companion-rescue-path about))
         (stamp (qwen-companion-disk-stamp path)))
    (when (and (qwen-companion-disk-expected-p path)
               (equal stamp (qwen-companion-rescue-stamp about)))
      (user-error "The CLI may be about to write %s; try again in a few seconds"
                  (qwen-companion-untrusted-path path)))
    (unless (run-hook-with-args-until-failure
             'qwen-companion-disk-catch-up-functions path)
      (user-error "%s has just changed on disk; try again in a moment"
                  (qwen-companion-untrusted-path path)))
    (let ((target (qwen-companion-disk-visit path)))
      (if (and (not (buffer-modified-p target))
               (verify-visited-file-modtime target)
               (or (equal stamp (qwen-companion-rescue-stamp about))
                   (equal (qwen-companion-disk-digest path)
                          (qwen-companion-rescue-digest about))))
          (qwen-companion-rescue--replace-text kept target)
        (qwen-companion-rescue--show-in-ediff kept target)))))

(defun qwen-companion-rescue--show-in-ediff (kept target)
  "Let Ediff show TARGET, the buffer of a file, beside the kept text in KEPT.
Signal a `user-error' and leave the windows alone if Ediff cannot do that."
  (let ((file (qwen-companion-untrusted-path (qwen-companion-rescue--path kept)))
        (windows (current-window-configuration)))
    (condition-case err
        (qwen-companion-compare-with-ediff
         (list target kept)
         (lambda () (ediff-buffers target kept)))
      (error
       (set-window-configuration windows)
       (user-error
        (substitute-command-keys
         "%s has other changes too, and Ediff cannot show them (%s); \\[qwen-companion-kept-difference] shows what differs")
        file (error-message-string err))))
    (message "qwen-companion: %s has other changes too; take over what you want" file)))

(defun qwen-companion-rescue--replace-text (kept target)
  "Make the text of the buffer TARGET that of KEPT, which is killed; show it."
  (let ((line-end (qwen-companion-rescue-line-end
                   (buffer-local-value 'qwen-companion-rescue--current kept))))
    (with-current-buffer kept (widen))
    (with-current-buffer target
      (when (and (equal line-end "\r\n") (zerop (buffer-size)))
        (set-buffer-file-coding-system 'dos))
      (save-restriction
        (widen)
        (undo-boundary)
        (replace-buffer-contents kept 0.1)
        (undo-boundary))
      ;; Also an empty text for a file that is not there is to be saved.
      (set-buffer-modified-p t)))
  (kill-buffer kept)
  (pop-to-buffer target)
  (message "qwen-companion: the text is in this buffer, not saved yet"))

(defun qwen-companion-kept-discard (&optional buffer)
  "Kill the buffer of a kept text, and do nothing else.
Which text that is, and what BUFFER means, is as in
`qwen-companion-kept-apply'."
  (interactive (list (qwen-companion-rescue--read "Discard")))
  (kill-buffer (qwen-companion-rescue--find buffer)))

;;;###autoload
(defun qwen-companion-kept-difference (&optional buffer)
  "Show how the file on disk differs now from a kept text.
Which text that is, and what BUFFER means, is as in
`qwen-companion-kept-apply'."
  (interactive (list (qwen-companion-rescue--read "Compare")))
  (qwen-companion-rescue-compare (qwen-companion-rescue--find buffer)
                               #'display-buffer))

(defun qwen-companion-rescue-compare (buffer display)
  "Compare the file on disk with the kept text in BUFFER, and say the result.
DISPLAY is called with the buffer that shows it."
  (let* ((path (qwen-companion-rescue--path buffer))
         (file (qwen-companion-untrusted-path path)))
    (condition-case err
        (qwen-companion-compare-with-disk
         (qwen-companion-disk-text buffer "\n") path
         (lambda (difference)
           (if (null difference)
               (message "qwen-companion: %s holds that text" file)
             (funcall display difference)
             (message "qwen-companion: how %s differs from it is in %s"
                      file (buffer-name difference)))))
      ;; No room on the disk, for instance.
      (file-error
       (message "qwen-companion: the text kept in %s cannot be compared with %s: %s"
                (buffer-name buffer) file (error-message-string err))))))

(provide 'qwen-companion-rescue)
;;; qwen-companion-rescue.el ends here

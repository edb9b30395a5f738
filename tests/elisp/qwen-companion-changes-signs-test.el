;;; qwen-companion-changes-signs-test.el --- Tests of signs and keys in files  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Code:

(require 'qwen-companion-changes-test-helper)
(require 'qwen-companion-changes-here)

(defvar qwen-companion-changes-signs-test-spans nil
  "Alist of file names and the journal's answers about their lines.")

(defmacro qwen-companion-changes-signs-test-with (files &rest body)
  "Run BODY with FILES, a journal and signs."
  (declare (indent 1) (debug t))
  `(qwen-companion-changes-test-with ,files
     (let ((qwen-companion-changes-signs-test-spans nil)
           (answer (symbol-function 'qwen-companion-changes-test--answer)))
       (cl-letf (((symbol-function 'qwen-companion-changes-test--answer)
                  (lambda (method payload)
                    (if (eq method 'journal-spans)
                        (qwen-companion-journal-on-reply
                         (list :id (plist-get payload :id)
                               :spans (alist-get (file-name-nondirectory
                                                  (plist-get payload :path))
                                                 qwen-companion-changes-signs-test-spans
                                                 nil nil #'equal)))
                      (funcall answer method payload)))))
         (unwind-protect
             (progn
               (qwen-companion-changes-signs-enable)
               ,@body)
           (qwen-companion-changes-signs-disable))))))

(defun qwen-companion-changes-signs-test--lines ()
  "Return the numbers of the lines with signs in the current buffer."
  (sort (mapcar (lambda (overlay) (line-number-at-pos (overlay-start overlay)))
                (cl-remove-if-not
                 (lambda (overlay) (overlay-get overlay 'qwen-companion-changes-sign))
                 (overlays-in (point-min) (point-max))))
        #'<))

(defun qwen-companion-changes-signs-test--work ()
  "Update the signs of the buffers that wait for it, as is done a little later."
  (qwen-companion-changes-signs--work))

(ert-deftest qwen-companion-changes-signs-test-marks-unseen-lines ()
  (qwen-companion-changes-signs-test-with '(("a.txt" "1\n2\n3\n4\n"))
    (switch-to-buffer (find-file-noselect "a.txt"))
    (let ((margins (window-margins)))
      (setq qwen-companion-changes-signs-test-spans
            '(("a.txt" (2 2 "one" nil) (4 0 "one" nil) (1 1 "one" t))))
      (qwen-companion-changes-test-turn "one" '(("a.txt" "1\nX\nY\n4\n")))
      (revert-buffer t t)
      (qwen-companion-changes-signs-test--work)
      (should (equal '(2 3 4) (qwen-companion-changes-signs-test--lines)))
      (should (equal 1 (car (window-margins))))
      ;; They stay with their lines while the user types.
      (goto-char (point-min))
      (insert "0\n")
      (should (equal '(3 4 5) (qwen-companion-changes-signs-test--lines)))
      (set-buffer-modified-p nil)
      ;; Seen: none is left.
      (qwen-companion-backend-call
       'journal-seen (list :turn "one" :path (expand-file-name "a.txt") :seen t))
      (qwen-companion-changes-signs-test--work)
      (should-not (qwen-companion-changes-signs-test--lines))
      (should (equal margins (window-margins)))
      (should-not (local-variable-p 'left-margin-width)))))

(ert-deftest qwen-companion-changes-signs-test-margin-of-another-package ()
  "The margin that another package sets meanwhile stays, as Flymake's of Emacs 30."
  (with-temp-buffer
    (qwen-companion-buffers-set-left-margin 'signs 1)
    (setq left-margin-width 2)
    (qwen-companion-buffers-set-left-margin 'blame 10)
    (should (equal 13 left-margin-width))
    (qwen-companion-buffers-set-left-margin 'blame 0)
    (qwen-companion-buffers-set-left-margin 'signs 0)
    (should (equal 2 left-margin-width))
    (kill-local-variable 'left-margin-width)
    (qwen-companion-buffers-set-left-margin 'signs 1)
    (qwen-companion-buffers-set-left-margin 'signs 0)
    (should-not (local-variable-p 'left-margin-width))))

(ert-deftest qwen-companion-changes-signs-test-option-and-mode ()
  (qwen-companion-changes-signs-test-with '(("a.txt" "1\n2\n"))
    (setq qwen-companion-changes-signs-test-spans '(("a.txt" (2 1 "one" nil))))
    (qwen-companion-changes-test-turn "one" '(("a.txt" "1\nX\n")))
    (with-current-buffer (find-file-noselect "a.txt")
      (qwen-companion-changes-signs-test--work)
      (should (equal '(2) (qwen-companion-changes-signs-test--lines)))
      (unwind-protect
          (progn
            (customize-set-variable 'qwen-companion-changes-signs nil)
            (should-not (qwen-companion-changes-signs-test--lines))
            (should-not (qwen-companion-journal-watched-p)))
        (customize-set-variable 'qwen-companion-changes-signs t))
      (qwen-companion-changes-signs-test--work)
      (should (equal '(2) (qwen-companion-changes-signs-test--lines)))
      (qwen-companion-changes-signs-disable)
      (should-not (qwen-companion-changes-signs-test--lines))
      (should-not (string-search "qwen-companion-changes-signs" (format "%s" find-file-hook)))
      (should-not (qwen-companion-journal-watched-p)))))

(ert-deftest qwen-companion-changes-signs-test-goes-from-file-to-file ()
  (qwen-companion-changes-signs-test-with '(("a.txt" "1\n2\n3\n4\n5\n") ("b.txt" "1\n2\n"))
    (setq qwen-companion-changes-signs-test-spans
          '(("a.txt" (2 1 "one" nil) (5 1 "one" nil)) ("b.txt" (2 1 "one" nil))))
    (qwen-companion-changes-test-turn "one" '(("a.txt" "1\nX\n3\n4\nY\n") ("b.txt" "1\nZ\n")))
    (switch-to-buffer (find-file-noselect "a.txt"))
    (dolist (place '(("a.txt" . 2) ("a.txt" . 5) ("b.txt" . 2)))
      (call-interactively #'qwen-companion-changes-next)
      (set-buffer (window-buffer))
      (should (equal place (cons (file-name-nondirectory buffer-file-name) (line-number-at-pos)))))
    (should-error (call-interactively #'qwen-companion-changes-next) :type 'user-error)
    (dolist (place '(("a.txt" . 5) ("a.txt" . 2)))
      (call-interactively #'qwen-companion-changes-previous)
      (set-buffer (window-buffer))
      (should (equal place (cons (file-name-nondirectory buffer-file-name) (line-number-at-pos)))))
    (should-error (call-interactively #'qwen-companion-changes-previous) :type 'user-error)))

(ert-deftest qwen-companion-changes-signs-test-same-keys-in-the-file ()
  (qwen-companion-changes-signs-test-with '(("a.txt" "1\n2\n3\n4\n5\n6\n7\n8\n9\n"))
    (setq qwen-companion-changes-signs-test-spans '(("a.txt" (9 1 "one" nil))))
    (qwen-companion-changes-test-turn "one" '(("a.txt" "1\n2\n3\n4\n5\n6\n7\n8\nX\n")))
    (switch-to-buffer (find-file-noselect "a.txt"))
    (goto-char (point-min))
    (should-error (qwen-companion-changes-undo) :type 'user-error)
    ;; The user's own lines above shift it.
    (insert "0\n")
    (save-buffer)
    (search-forward "X")
    (cl-flet ((press (key)
                (should (eq 'qwen-companion-changes-command-map
                            (get (lookup-key qwen-companion-changes-command-map key) 'repeat-map)))
                (call-interactively (lookup-key qwen-companion-changes-command-map key))
                (set-buffer (window-buffer))))
      (press "k")
      (should (equal "0\n1\n2\n3\n4\n5\n6\n7\n8\n9\n" (buffer-string)))
      (should-not (buffer-modified-p))
      (press "u")
      (should (equal "0\n1\n2\n3\n4\n5\n6\n7\n8\nX\n" (buffer-string)))
      (press "w")
      (should (equal "the patch\n" (current-kill 0)))
      (qwen-companion-test-choosing "Why?" (press "c"))
      (with-current-buffer qwen-companion-changes-items-buffer-name
        (should (equal "Comments on your changes:\n\na.txt:10\n>  X\nWhy?\n"
                       (qwen-companion-changes-comments--prompt qwen-companion-changes-items-comments))))
      (press "s")
      (should (plist-get (car (last (qwen-companion-test-sent 'journal-seen))) :hunks))
      (should-not (cl-some (lambda (buffer)
                             (string-prefix-p " *qwen-companion change*" (buffer-name buffer)))
                           (buffer-list))))))

(provide 'qwen-companion-changes-signs-test)
;;; qwen-companion-changes-signs-test.el ends here
